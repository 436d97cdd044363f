"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const maps = read("maps");
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  // Charts are drawn when they come into view: a report may have hundreds.
  const draw = new Map();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && draw.has(entry.target)) {
        const make = draw.get(entry.target);
        draw.delete(entry.target);
        make();
      }
    }
  }, { rootMargin: "400px" });
  const later = (element, make) => { draw.set(element, make); seen.observe(element); };

  for (const [id, figure] of Object.entries(figures)) {
    const element = document.getElementById(id);
    const fit = () => {  // the legend stands below the plot, which keeps its height however many schemes there are
      const names = figure.data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name);
      const widest = Math.max(...names.map((name) => name.length), 1) * 6.5 + 60;
      const columns = Math.max(1, Math.floor((element.clientWidth - 70) / widest));
      return 350 + 19 * Math.ceil(names.length / columns);
    };
    element.style.minHeight = `${fit()}px`;
    later(element, () => Plotly.newPlot(element, figure.data, { ...figure.layout, height: fit() }, options));
  }

  // Tables: a click on a heading sorts by it, the best first, another click turns it round.
  for (const table of document.querySelectorAll("table")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      heading.firstElementChild.addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
        const compare = (a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === "");  // what is unknown stays last
          const order = heading.classList.contains("number") ? Number(x) - Number(y) : x.localeCompare(y);
          return up ? order : -order;
        };
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      });
    });
  }

  // Maps.  Two bytes a link, in tenths of a per cent; 65535 is a failed one.
  const FAILED = 65535;
  for (const figure of document.querySelectorAll("[data-map]")) {
    const map = maps[figure.dataset.map];
    const cables = NetworkMap.cablesOf(map);
    const part = (role) => figure.querySelector(`[data-role="${role}"]`);
    const chart = figure.querySelector(".chart");
    map.cases.forEach((name, i) => part("case").add(new Option(name, i)));
    map.schemes.forEach((name, i) => part("scheme").add(new Option(name, i)));
    const show = () => {
      const packed = map.utilisation[`${part("case").value}/${part("scheme").value}`];
      if (packed === undefined) {
        part("said").textContent = "This scheme has no allocation of this matrix.";
        Plotly.purge(chart);
        return;
      }
      const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
      const shares = Array.from({ length: bytes.length / 2 }, (_, i) => {
        const steps = bytes[2 * i] + 256 * bytes[2 * i + 1];
        return steps === FAILED ? NaN : steps / 10;
      });
      const { data, fullest } = NetworkMap.traces(map, cables, shares, "#1c2430");
      part("said").textContent = `fullest link: ${fullest.toFixed(1)}%`;
      Plotly.react(chart, data, NetworkMap.layout, NetworkMap.options);
    };
    part("case").addEventListener("change", show);
    part("scheme").addEventListener("change", show);
    later(chart, show);
  }
})();
