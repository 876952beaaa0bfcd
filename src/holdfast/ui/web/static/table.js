// Tables whose rows have a key. An update writes the cells that differ and nothing else, of rows in
// sight; those out of sight follow a few at a time, so that a long table costs no more than a short
// one and nothing is ever older than some seconds.

import { h, scroller } from "./dom.js";
import { DASH } from "./format.js";

const IN_TURN = 3; // rows out of sight that one update writes
const tables = new Set();

addEventListener("beforeprint", () => {
  for (const table of tables) table.writeAll();
});

function remember(table) {
  for (const one of tables) if (one.known && !one.element.isConnected) tables.delete(one);
  tables.add(table);
}

// A column: {label, text(row), cls?(row), href?(row), links?(row) -> [[text, href]], num?, hint?,
// sort?(row), pure?}. Where it is pure, text and class follow from what it sorts by, and are not
// made again while that is the same.
export class KeyedTable {
  constructor(label, columns, key, { empty = "none", sortable = false, caption = "" } = {}) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.body = h("tbody");
    this.sorted = null;
    this.heads = columns.map((column, place) => this.head(column, place, sortable));
    this.table = h("table", {}, caption ? h("caption", {}, caption) : null,
      h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.none = h("p", { class: "none" }, empty);
    this.box = scroller(label, this.table);
    this.element = h("div", {}, this.box, this.none);
    this.shown = null;
    this.records = new WeakMap(); // by element
    this.late = new Set();
    this.sight = new IntersectionObserver((entries) => this.moved(entries), { rootMargin: "30px 0px" });
    remember(this);
  }

  moved(entries) {
    for (const { target, isIntersecting } of entries) {
      const record = this.records.get(target);
      if (!record) continue;
      record.inSight = isIntersecting;
      if (isIntersecting && this.late.delete(record)) this.write(record, record.row);
    }
  }

  writeAll() {
    for (const record of this.late) this.write(record, record.row);
    this.late.clear();
  }

  head(column, place, sortable) {
    const attributes = { scope: "col", class: column.num ? "num" : "", title: column.hint };
    if (!sortable || !column.sort) return h("th", attributes, column.label);
    const button = h("button", { type: "button", class: "sort" }, column.label);
    const cell = h("th", attributes, button);
    button.addEventListener("click", () => this.sortBy(place));
    return cell;
  }

  sortBy(place) {
    const same = this.sorted && this.sorted.place === place;
    if (same && this.sorted.down) this.sorted = null;
    else this.sorted = { place, down: same };
    this.heads.forEach((cell, at) => {
      if (this.sorted && at === place) {
        cell.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
      } else cell.removeAttribute("aria-sort");
    });
    this.onsort?.();
  }

  order(rows) {
    if (!this.sorted) return rows;
    const by = this.columns[this.sorted.place].sort;
    const sign = this.sorted.down ? -1 : 1;
    return [...rows].sort((a, b) => {
      const x = by(a), y = by(b);
      if (x === y) return 0;
      if (x === null || x === undefined) return 1; // unknown goes last, whichever way
      if (y === null || y === undefined) return -1;
      return x < y ? -sign : sign;
    });
  }

  update(rows) {
    const seen = new Set();
    let place = this.body.firstElementChild;
    for (const row of rows) {
      const key = this.key(row);
      if (seen.has(key)) continue;
      seen.add(key);
      let record = this.rows.get(key);
      if (record === undefined) {
        record = this.make();
        this.rows.set(key, record);
        this.write(record, row);
      } else if (record.inSight) this.write(record, row);
      else {
        record.row = row;
        this.late.add(record);
      }
      if (record.tr === place) place = place.nextElementSibling;
      else this.body.insertBefore(record.tr, place);
    }
    if (this.rows.size !== seen.size) {
      for (const [key, record] of this.rows) {
        if (!seen.has(key)) {
          this.sight.unobserve(record.tr);
          this.late.delete(record);
          record.tr.remove();
          this.rows.delete(key);
        }
      }
    }
    this.follow();
    const any = seen.size > 0;
    if (any !== this.shown) {
      this.shown = any;
      this.box.hidden = !any;
      this.none.hidden = any;
    }
  }

  follow() {
    this.known = true;
    let left = IN_TURN;
    for (const record of this.late) {
      if (left === 0) return;
      left -= 1;
      this.late.delete(record);
      this.write(record, record.row);
    }
  }

  make() {
    const cells = this.columns.map((column) => {
      const td = h(column.head ? "th" : "td",
        { class: column.num ? "num" : null, scope: column.head ? "row" : null });
      let into = td;
      if (column.href) {
        into = h("a", { class: column.head ? "row" : null });
        td.append(into);
      }
      const node = document.createTextNode("");
      into.append(node);
      return { td, node, a: column.href ? into : null, text: "", cls: "", href: "", value: undefined };
    });
    const record = { tr: h("tr", {}, cells.map((cell) => cell.td)), cells, cls: "", inSight: false, row: null };
    this.records.set(record.tr, record);
    this.sight.observe(record.tr);
    return record;
  }

  write(record, row) {
    const { columns } = this;
    for (let i = 0; i < columns.length; i += 1) {
      const column = columns[i], cell = record.cells[i];
      if (column.links) {
        this.writeLinks(cell, column.links(row));
        continue;
      }
      if (column.pure) {
        const value = column.sort(row);
        if (value === cell.value) continue;
        cell.value = value;
      }
      const text = column.text(row);
      if (text !== cell.text) {
        cell.text = text;
        cell.node.data = text;
      }
      if (column.cls) {
        const cls = column.cls(row);
        if (cls !== cell.cls) {
          cell.cls = cls;
          cell.td.className = cls + (column.num ? " num" : "");
        }
      }
      if (column.href) {
        const href = column.href(row);
        if (href !== cell.href) {
          cell.href = href;
          if (href) cell.a.setAttribute("href", href);
          else cell.a.removeAttribute("href");
        }
      }
    }
    const cls = this.rowClass ? this.rowClass(row) : "";
    if (cls !== record.cls) {
      record.cls = cls;
      record.tr.className = cls;
    }
  }

  writeLinks(cell, links) {
    const text = links.length === 0 ? DASH : links.map(([name]) => name).join(" ");
    if (text === cell.text) return;
    cell.text = text;
    if (links.length === 0) cell.td.replaceChildren(DASH);
    else {
      cell.td.replaceChildren(...links.flatMap(([name, href], at) =>
        [at ? " " : "", h("a", { href }, name)]));
    }
  }
}

// Tables that are drawn once and forgotten: the data behind a chart.
export function plainTable(label, heads, rows, numbers = true) {
  return scroller(label, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((text, at) =>
      h("th", { scope: "col", class: at && numbers ? "num" : null }, text)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((text, at) =>
      h("td", { class: at && numbers ? "num" : null }, text)))))));
}
