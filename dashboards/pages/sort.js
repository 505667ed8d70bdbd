// Sorts a table by a column, group by group: rows without a number go last.
document.querySelectorAll("table.sortable th[scope=col]").forEach(head => {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const table = head.closest("table"), index = head.cellIndex;
    const down = head.getAttribute("aria-sort") !== "descending";
    table.querySelectorAll("th[aria-sort]").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[index].dataset.value ?? row.cells[index].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return down ? -order : order;
    };
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter(row => row.cells.length === table.tHead.rows[table.tHead.rows.length - 1].cells.length);
      body.append(...rows.sort(compare));
    }
  });
});
