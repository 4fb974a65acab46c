"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip");

  // Tables: a head becomes a button that sorts by its column.
  const order = (row, column) => row.cells[column].dataset.order ?? "";
  const before = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  const sort = (table, head) => {
    const column = head.cellIndex;
    const falling = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const body = table.tBodies[0];
    const empty = (row) => order(row, column) === "";
    const rows = [...body.rows].sort((a, b) =>
      empty(a) || empty(b) ? empty(a) - empty(b) : (falling ? -1 : 1) * before(order(a, column), order(b, column)));
    body.append(...rows);
  };
  for (const table of all("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, head));
    }
  }

  // Figures: one stop for the keyboard each; arrow keys, Home and End go from mark to mark.
  const place = (mark) => {
    const box = mark.getBoundingClientRect();
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 4);
    const above = box.top - own.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : Math.min(box.bottom + 8, innerHeight - own.height - 4)}px`;
  };
  const hide = () => { tip.hidden = true; };
  const middle = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const towards = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const next = (marks, from, key) => {
    const at = marks.indexOf(from);
    if (key === "Home") return marks[0];
    if (key === "End") return marks[marks.length - 1];
    if (!(key in towards)) return null;
    const [dx, dy] = towards[key];
    const [x, y] = middle(from);
    let best = null;
    let least = Infinity;
    for (const mark of marks) {
      const [mx, my] = middle(mark);
      const ahead = (mx - x) * dx + (my - y) * dy;
      const aside = Math.abs((mx - x) * dy) + Math.abs((my - y) * dx);
      const cost = ahead + 3 * aside;
      if (mark !== from && ahead > 0.5 && cost < least) [best, least] = [mark, cost];
    }
    // A row of bars or points has nothing straight ahead where heights differ: go on in reading order.
    return best ?? (dx ? marks[at + dx] : null);
  };
  for (const plot of all("svg.plot")) {
    const marks = all(".mark", plot);
    for (const mark of marks) {
      // The browser's own hint would cover ours.
      mark.querySelector("title")?.remove();
      mark.addEventListener("pointerenter", () => place(mark));
      mark.addEventListener("pointerleave", hide);
      mark.addEventListener("focus", () => place(mark));
      mark.addEventListener("blur", hide);
    }
    if (marks.length) marks[0].setAttribute("tabindex", "0");
    plot.addEventListener("keydown", (event) => {
      const from = event.target.closest(".mark");
      const to = from && next(marks.filter((mark) => !mark.classList.contains("off")), from, event.key);
      if (!to) return;
      event.preventDefault();
      from.setAttribute("tabindex", "-1");
      to.setAttribute("tabindex", "0");
      to.focus();
    });
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // Focus scrolls a mark into sight; its words go with it.
  addEventListener("scroll", () => {
    const held = document.activeElement?.closest(".mark");
    if (!tip.hidden) held ? place(held) : hide();
  }, { passive: true });

  // One filter for the page. What names no layer or no operator speaks of all of them.
  const form = document.getElementById("filter");
  if (!form) return;
  const [layer, operator] = [document.getElementById("by-layer"), document.getElementById("by-operator")];
  const words = (node, name) => (node.dataset[name] ?? "").split(" ").filter(Boolean);
  const speaksOf = (node, name, wanted) => {
    const named = words(node, name);
    return wanted === "" || named.length === 0 || named.includes(wanted);
  };
  const filter = () => {
    let shown = 0;
    const marked = all("[data-layers],[data-operators]");
    for (const node of marked) {
      const on = speaksOf(node, "layers", layer.value) && speaksOf(node, "operators", operator.value);
      node.classList.toggle("off", !on);
      if (on && node.matches("tr")) shown += 1;
    }
    const rows = marked.filter((node) => node.matches("tr")).length;
    document.getElementById("shown").textContent =
      layer.value || operator.value ? `${shown} of ${rows} table rows; other marks are faded` : "";
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
})();
