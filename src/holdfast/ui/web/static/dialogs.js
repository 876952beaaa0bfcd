// Before an order goes out, it is said what it does; the answer is read aloud.

import { h, newId } from "./dom.js";
import { mayOrder, order, signIn } from "./server.js";

export function dialog(title, ...children) {
  const id = newId("d");
  const element = h("dialog", { "aria-labelledby": id }, h("h2", { id }, title), ...children);
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  return element;
}

export function ask(title, means, label, where, body, said) {
  const back = document.activeElement;
  const yes = h("button", { type: "button", class: "main" }, label);
  const no = h("button", { type: "button" }, "Cancel");
  const problem = h("p", { class: "bad", role: "alert" });
  const token = mayOrder() ? null : h("input", { type: "password", id: "order-token", autocomplete: "current-password", maxlength: "4096" });
  const needs = token && h("div", {}, h("p", {}, "Orders need a sign-in: open the link that “holdfast sign-in” prints, or give the admin token."),
    h("label", { for: "order-token" }, "Admin token"), token);
  const box = dialog(title, h("p", {}, means), ...(needs ? [needs] : []), problem, h("div", { class: "tools" }, yes, no));
  box.addEventListener("close", () => back?.focus());
  no.addEventListener("click", () => box.close());
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      if (token && !mayOrder()) await signIn({ token: token.value });
      const answer = await order(where, body);
      box.close();
      said(`${label}: ${answer.reason || "begun"}`);
    } catch (error) {
      problem.textContent = error.message;
      yes.disabled = false;
    }
  });
  no.focus();
}
