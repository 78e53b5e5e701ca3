// A list of /api/v1 as a table: pages, sorting and searching are done by the broker, and what is
// chosen stands in the address, so that a link leads to the same rows.

import { get } from "./api.js";
import { announce, h, replace } from "./dom.js";
import { count } from "./format.js";
import { keep, parse } from "./router.js";

export const REFRESH_SECONDS = 5;
const SIZES = [25, 50, 100, 500];

// Rates of what only rises, from one look to the next: rates(key, { published: 5 }) is what each
// rose by in a second since the last look at this key, or {} where there was none.
export class Rates {
  #seen = new Map();

  of(key, counters) {
    const now = performance.now();
    const before = this.#seen.get(key);
    // A new object keeps what is shown in order: what was not looked at for long is forgotten.
    this.#seen.delete(key);
    this.#seen.set(key, { at: now, counters });
    if (this.#seen.size > 2000) this.#seen.delete(this.#seen.keys().next().value);
    if (!before || now - before.at < 200) return {};
    const seconds = (now - before.at) / 1000;
    const found = {};
    for (const [name, value] of Object.entries(counters)) {
      const rise = value - before.counters[name];
      if (rise >= 0) found[name] = rise / seconds;
    }
    return found;
  }
}

// A table without pages, of rows that are there: columns as below, but they sort nothing.
export function plainTable(caption, columns, rows, empty = "There are none.") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const heads = columns.map((column) => h("th", { scope: "col", role: "columnheader", class: kind(column) }, column.title));
  return framed(caption, heads, h("tbody", { role: "rowgroup" }, rows.map((row) => line(columns, row))));
}

// A table that scrolls where it is too wide. On a phone its rows are cards, which are no table to a browser any more:
// the roles say that they are.
function framed(caption, heads, body) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { role: "table" }, h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body));
}

const kind = (column) => (column.isNumber ? "number" : column.isShort ? "short" : null);

function line(columns, row) {
  return h("tr", { role: "row" }, columns.map((column, index) => (index === 0
    ? h("th", { scope: "row", role: "rowheader" }, column.cell(row))
    : h("td", { role: "cell", class: kind(column), "data-title": typeof column.title === "string" && column.title }, column.cell(row)))));
}

// A table of a list.
//
//   view     what the page was given (see app.js)
//   path     of the list, behind api/v1/
//   caption  what it is a list of
//   columns  [{ title, cell(item) -> text or element, sort: field, isNumber, isShort }]; the first names the row
//   query    what else is asked of the list
//   search   whether names can be looked for
//   actions  elements beside the search
export function listTable(view, { path, caption, columns, query = {}, search = true, actions = [], empty = "There are none." }) {
  const chosen = { page: "1", page_size: "50", name: "", sort: "", sort_reverse: "", ...view.query };
  const body = h("tbody", { role: "rowgroup" });
  const total = h("p", { class: "total" });
  const pages = h("nav", { class: "pages", "aria-label": `Pages of ${caption}` });
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const heads = columns.map((column) => head(column));
  const table = framed(caption, heads, body);
  let typing = 0;

  function head(column) {
    if (!column.sort) return h("th", { scope: "col", role: "columnheader", class: kind(column) }, column.title);
    const sort = () => {
      const isSame = chosen.sort === column.sort;
      chosen.sort_reverse = isSame && chosen.sort_reverse !== "true" ? "true" : isSame ? "" : column.isNumber ? "true" : "";
      choose({ sort: column.sort, page: "1" });
    };
    return h("th", { scope: "col", role: "columnheader", class: kind(column) }, h("button", { type: "button", class: "plain sort", onclick: sort }, column.title));
  }

  function showOrder() {
    columns.forEach((column, index) => {
      const isChosen = column.sort && column.sort === chosen.sort;
      const order = chosen.sort_reverse === "true" ? "descending" : "ascending";
      if (isChosen) heads[index].setAttribute("aria-sort", order);
      else heads[index].removeAttribute("aria-sort");
    });
  }

  function choose(change) {
    Object.assign(chosen, change);
    const { page, page_size: size, ...rest } = chosen;
    keep({ ...parse(location.hash).query, ...rest, page: page === "1" ? "" : page, page_size: size === "50" ? "" : size });
    showOrder();
    return load();
  }

  const input = h("input", {
    type: "search", value: chosen.name, maxlength: "128", "aria-label": `Search ${caption} by name`, placeholder: "Search by name",
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => choose({ name: input.value, page: "1" }), 250);
    },
  });
  const sizes = h("select", { "aria-label": "Rows of a page", onchange: () => choose({ page_size: sizes.value, page: "1" }) },
    SIZES.map((size) => h("option", { value: String(size), selected: String(size) === chosen.page_size }, `${size} rows`)));

  async function load() {
    const asked = JSON.stringify(chosen);
    let found;
    try {
      found = await get(path, { ...query, page: chosen.page, page_size: chosen.page_size, name: chosen.name, sort: chosen.sort,
        sort_reverse: chosen.sort_reverse }, { signal: view.signal });
    } catch (error) {
      if (error.kind === "page-out-of-range" && chosen.page !== "1") return choose({ page: "1" });
      throw error;
    }
    // Something else was chosen meanwhile.
    if (asked !== JSON.stringify(chosen)) return undefined;
    show(found);
    return found;
  }

  function show(found) {
    replace(body, found.items.map((item) => line(columns, item)));
    nothing.hidden = found.items.length > 0;
    table.hidden = !nothing.hidden;
    const all = found.filtered_count === found.total_count ? count(found.total_count) : `${count(found.filtered_count)} of ${count(found.total_count)}`;
    if (total.textContent !== all) {
      total.textContent = all;
      if (chosen.name) announce(`${all} found`);
    }
    const button = (text, label, page, isOn) =>
      h("button", { type: "button", disabled: !isOn, "aria-label": label, onclick: () => choose({ page: String(page) }) }, text);
    const { page, page_count: last } = found;
    replace(pages, last > 1 && [
      button("«", "First page", 1, page > 1), button("‹", "Previous page", page - 1, page > 1),
      h("span", {}, `Page ${page} of ${last}`),
      button("›", "Next page", page + 1, page < last), button("»", "Last page", last, page < last)]);
  }

  showOrder();
  view.every(REFRESH_SECONDS, load);
  return {
    element: h("section", { class: "list" },
      h("div", { class: "tools" }, search && input, total, h("span", { class: "gap" }), actions, sizes),
      nothing, table, pages),
    load,
  };
}
