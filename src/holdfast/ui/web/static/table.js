// Tables whose rows have a key. An update writes the cells that differ and nothing else, of rows in
// sight. Words, signs and colours follow at once. Figures that merely moved follow in turn, a row at
// a time: laying one out costs a browser more than all the script around it, and nobody reads three
// hundred numbers a second. Rows out of sight are written last, or as they come into it.

import { h, scroller } from "./dom.js";
import { DASH } from "./format.js";

const FIGURES = 16; // that one update writes of one table, a row more or less
const UNSEEN = 5; // and that many in rows out of sight, for whoever searches the page
const TURN_MS = 1000; // until the next have their turn, where no update comes sooner
const CHARACTERS = 3; // for which each column of figures has room
const tables = new Set();

addEventListener("beforeprint", () => {
  for (const table of tables) table.writeAll();
});

function remember(table) {
  for (const one of tables) if (one.known && !one.element.isConnected) tables.delete(one);
  tables.add(table);
}

// A column: {label, text(row), cls?(row), href?(row), links?(row) -> [[text, href]], num?, hint?,
// sort?(row), pure?, only?}. A column with only is hidden while no row has a member of that name. Where it is pure, text and class follow from what it sorts by, and are not
// made again while that is the same. A figure (num) stands in a box of its own that needs no layout
// of the table; its column is as wide as the longest one was.
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
    this.optional = [...new Set(columns.map((column) => column.only).filter(Boolean))];
    this.without = null;
    this.records = new WeakMap(); // by element
    this.turns = new Set(); // records, the one that was written longest ago first
    this.characters = columns.map(() => CHARACTERS); // of the longest figure
    this.prompt = columns.map((column, place) => place).filter((place) => !columns[place].num || columns[place].cls);
    this.sight = new IntersectionObserver((entries) => this.moved(entries), { rootMargin: "30px 0px" });
    remember(this);
  }

  moved(entries) {
    for (const { target, isIntersecting } of entries) {
      const record = this.records.get(target);
      if (!record) continue;
      record.inSight = isIntersecting;
      if (isIntersecting && record.late) this.write(record);
    }
  }

  writeAll() {
    for (const record of this.rows.values()) if (record.late) this.write(record);
  }

  head(column, place, sortable) {
    const attributes = { scope: "col", class: column.num ? "num" : "", title: column.hint, "data-only": column.only };
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
        record.row = row;
        this.write(record);
      } else {
        record.row = row;
        record.late = true;
        if (record.inSight) this.writePrompt(record);
      }
      if (record.tr === place) place = place.nextElementSibling;
      else this.body.insertBefore(record.tr, place);
    }
    if (this.rows.size !== seen.size) {
      for (const [key, record] of this.rows) {
        if (!seen.has(key)) {
          this.sight.unobserve(record.tr);
          this.turns.delete(record);
          record.tr.remove();
          this.rows.delete(key);
        }
      }
    }
    this.follow();
    this.hideEmpty(rows);
    const any = seen.size > 0;
    if (any !== this.shown) {
      this.shown = any;
      this.box.hidden = !any;
      this.none.hidden = any;
    }
  }

  hideEmpty(rows) {
    const without = this.optional.filter((name) => !rows.some((row) => row[name])).join(" ");
    if (without === this.without) return;
    this.without = without;
    this.table.dataset.without = without;
  }

  // Rows in sight first.
  follow() {
    this.known = true;
    const late = [...this.turns].filter((record) => record.late);
    this.inTurn(late.filter((record) => record.inSight), FIGURES);
    this.inTurn(late.filter((record) => !record.inSight), UNSEEN);
    clearTimeout(this.timer);
    if (this.element.isConnected && late.some((record) => record.late && record.inSight)) {
      this.timer = setTimeout(() => this.follow(), TURN_MS);
    }
  }

  inTurn(records, figures) {
    for (const record of records) {
      if (figures <= 0) return;
      figures -= this.write(record);
    }
  }

  make() {
    const cells = this.columns.map((column) => {
      const td = h(column.head ? "th" : "td",
        { class: column.num ? "num" : null, scope: column.head ? "row" : null, "data-only": column.only });
      let box = td, into = td;
      if (column.num) td.append(box = into = h("div", { class: "figure" }));
      if (column.href) box.append(into = h("a", { class: column.head ? "row" : null }));
      const node = document.createTextNode("");
      into.append(node);
      return { td, box, node, a: column.href ? into : null, text: "", cls: "", href: "", value: undefined };
    });
    const record = { tr: h("tr", {}, cells.map((cell) => cell.td)), cells, cls: "", inSight: false,
      row: null, late: false };
    this.records.set(record.tr, record);
    this.sight.observe(record.tr);
    return record;
  }

  // All of a row; the number of cells that differed.
  write(record) {
    record.late = false;
    this.turns.delete(record);
    this.turns.add(record);
    let differed = 0;
    for (let place = 0; place < this.columns.length; place += 1) differed += this.writeCell(record, place);
    this.writeClass(record);
    return differed;
  }

  // What must not wait: words, the figure by which rows are sorted, and a row with a figure whose
  // colour changes.
  writePrompt(record) {
    for (const place of this.prompt) {
      if (this.columns[place].num && this.recoloured(record, place)) {
        this.write(record);
        return;
      }
    }
    for (const place of this.prompt) if (!this.columns[place].num) this.writeCell(record, place);
    if (this.sorted) this.writeCell(record, this.sorted.place);
    this.writeClass(record);
  }

  recoloured({ cells, row }, place) {
    const column = this.columns[place], cell = cells[place];
    return !(column.pure && column.sort(row) === cell.value) && column.cls(row) !== cell.cls;
  }

  writeCell({ cells, row }, place) {
    const column = this.columns[place], cell = cells[place];
    if (column.links) return this.writeLinks(cell, column.links(row));
    if (column.pure) {
      const value = column.sort(row);
      if (value === cell.value) return 0;
      cell.value = value;
    }
    const text = column.text(row), cls = column.cls ? column.cls(row) : "";
    const differs = text !== cell.text || cls !== cell.cls;
    if (differs && column.num) this.makeRoom(place, text, cls);
    if (text !== cell.text) {
      cell.text = text;
      cell.node.data = text;
    }
    if (cls !== cell.cls) {
      cell.cls = cls;
      cell.box.className = column.num ? `figure ${cls}` : cls;
    }
    if (column.href) {
      const href = column.href(row);
      if (href !== cell.href) {
        cell.href = href;
        if (href) cell.a.setAttribute("href", href);
        else cell.a.removeAttribute("href");
      }
    }
    return Number(differs);
  }

  writeClass(record) {
    const cls = this.rowClass ? this.rowClass(record.row) : "";
    if (cls !== record.cls) {
      record.cls = cls;
      record.tr.className = cls;
    }
  }

  // The boxes of figures have no width of their own; the head of the column gives it.
  makeRoom(place, text, cls) {
    const characters = text.length + (cls.includes("mark") ? 2 : 0);
    if (characters <= this.characters[place]) return;
    this.characters[place] = characters;
    this.heads[place].style.setProperty("--characters", characters);
  }

  writeLinks(cell, links) {
    const text = links.length === 0 ? DASH : links.map(([name]) => name).join(" ");
    if (text === cell.text) return 0;
    cell.text = text;
    if (links.length === 0) cell.td.replaceChildren(DASH);
    else {
      cell.td.replaceChildren(...links.flatMap(([name, href], at) =>
        [at ? " " : "", h("a", { href }, name)]));
    }
    return 1;
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
