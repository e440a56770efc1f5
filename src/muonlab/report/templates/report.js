"use strict";
// Theme, sorting and copying. Without scripts the page has the same content.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const themes = ["auto", "light", "dark"];
  for (const button of all("[data-theme-button]")) {
    let at = 0;
    button.hidden = false;
    button.addEventListener("click", () => {
      at = (at + 1) % themes.length;
      button.textContent = `Theme: ${themes[at]}`;
      if (at) document.documentElement.dataset.theme = themes[at];
      else delete document.documentElement.dataset.theme;
    });
  }

  // Sorting: ascending, descending, original order. Rows without a value stay last; the sort is stable.
  const words = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const infinite = { inf: Infinity, "-inf": -Infinity };
  const number = (cell) => {
    const text = cell.dataset.value;
    return text in infinite ? infinite[text] : Number(text);
  };
  const key = (row, column, numeric) => {
    const cell = row.cells[column];
    if (!cell || "missing" in cell.dataset) return null;
    if (!numeric) return cell.textContent.trim();
    const value = "value" in cell.dataset ? number(cell) : NaN;
    return Number.isNaN(value) ? null : value;
  };
  const compare = (a, b) => (typeof a === "number" ? (a > b) - (a < b) : words.compare(a, b));
  const sorted = (rows, column, numeric, direction) => {
    const keyed = rows.map((row, place) => ({ row, place, value: key(row, column, numeric) }));
    const present = keyed.filter((entry) => entry.value !== null);
    const missing = keyed.filter((entry) => entry.value === null);
    present.sort((a, b) => direction * compare(a.value, b.value) || a.place - b.place);
    return [...present, ...missing].map((entry) => entry.row);
  };
  const next = { none: "ascending", ascending: "descending", descending: "none" };
  for (const table of all("table[data-sortable]")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      head.querySelector("button.sort").addEventListener("click", () => {
        const state = next[head.getAttribute("aria-sort")];
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", state);
        const direction = { ascending: 1, descending: -1 }[state];
        const numeric = head.dataset.kind === "number";
        body.replaceChildren(...(direction ? sorted(original, column, numeric, direction) : original));
      });
    });
  }

  // Copying: to the clipboard if the browser allows it; otherwise the text is selected for Ctrl+C.
  const select = (element) => {
    const selection = getSelection();
    selection.removeAllRanges();
    const range = document.createRange();
    range.selectNodeContents(element);
    selection.addRange(range);
  };
  const copy = async (element) => {
    try {
      await navigator.clipboard.writeText(element.textContent);
      return "Copied";
    } catch {
      select(element);
      return "Selected: press Ctrl+C";
    }
  };
  for (const button of all("[data-copy]")) {
    const source = button.closest(".typed, .copy-block")?.querySelector("[data-text]");
    if (!source) continue;
    const said = document.createElement("span");
    said.className = "unseen";
    said.setAttribute("role", "status");
    button.after(said);
    button.hidden = false;
    button.addEventListener("click", async () => {
      const words = await copy(source);
      button.textContent = words;
      said.textContent = words;
      setTimeout(() => {
        button.textContent = "Copy";
        said.textContent = "";
      }, 4000);
    });
  }

  // Print with all details open.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
  });
})();
