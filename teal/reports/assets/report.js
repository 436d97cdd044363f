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
  const bins = [
    { least: 100.5, name: "over 100%", color: "#c2185b", width: 4.6 },
    { least: 99.5, name: "full", color: "#7a0403", width: 4 },
    { least: 90, name: "90 to 99%", color: "#d93806", width: 3.4 },
    { least: 70, name: "70 to 90%", color: "#fb9b2d", width: 3 },
    { least: 40, name: "40 to 70%", color: "#7cc36a", width: 2.6 },
    { least: 10, name: "10 to 40%", color: "#3d8fd1", width: 2.2 },
    { least: -1, name: "under 10%", color: "#b9c2cf", width: 1.6 },
  ];
  const failedBin = { name: "failed", color: "#333", width: 1.6, dash: "dot" };

  const cablesOf = (map) => {
    const found = new Map();
    map.source.forEach((s, link) => {
      const t = map.target[link];
      const key = s < t ? `${s},${t}` : `${t},${s}`;
      if (!found.has(key)) found.set(key, { a: Math.min(s, t), b: Math.max(s, t), links: [] });
      found.get(key).links.push(link);
    });
    return [...found.values()];
  };

  const traces = (map, cables, shares) => {
    const lines = new Map([...bins, failedBin].map((bin) => [bin, { x: [], y: [] }]));
    const points = { x: [], y: [], text: [] };
    let fullest = 0;
    for (const { a, b, links } of cables) {
      const working = links.filter((link) => shares[link] !== FAILED);
      const most = Math.max(...working.map((link) => shares[link] / 10), 0);
      fullest = Math.max(fullest, most);
      const bin = working.length ? bins.find((candidate) => most >= candidate.least) : failedBin;
      lines.get(bin).x.push(map.x[a], map.x[b], null);
      lines.get(bin).y.push(map.y[a], map.y[b], null);
      points.x.push((map.x[a] + map.x[b]) / 2);
      points.y.push((map.y[a] + map.y[b]) / 2);
      points.text.push(links.map((link) => {
        const name = `${map.nodes[map.source[link]]} \u2192 ${map.nodes[map.target[link]]}`.replaceAll("<", "&lt;");
        const state = shares[link] === FAILED ? "failed" : `${(shares[link] / 10).toFixed(1)}%`;
        return `${name}: ${state} of ${Number(map.capacity[link].toPrecision(4))} Gbit/s`;
      }).join("<br>"));
    }
    const large = map.nodes.length > 80;
    return {
      fullest,
      data: [
        ...[...lines].map(([bin, { x, y }]) => ({
          x, y, mode: "lines", name: bin.name, hoverinfo: "skip", visible: x.length ? true : "legendonly",
          line: { color: bin.color, width: large ? bin.width / 1.6 : bin.width, dash: bin.dash ?? "solid" },
        })),
        {
          ...points, mode: "markers", showlegend: false, hovertemplate: "%{text}<extra></extra>",
          marker: { size: 12, opacity: 0 },
        },
        {
          x: map.x, y: map.y, text: map.nodes.map((name) => name.replaceAll("<", "&lt;")), showlegend: false,
          mode: large ? "markers" : "markers+text", textposition: "top center", textfont: { size: 10 },
          marker: { size: large ? 4 : 8, color: "#1c2430" }, hovertemplate: "%{text}<extra></extra>",
        },
      ],
    };
  };

  for (const figure of document.querySelectorAll("[data-map]")) {
    const map = maps[figure.dataset.map];
    const cables = cablesOf(map);
    const part = (role) => figure.querySelector(`[data-role="${role}"]`);
    const chart = figure.querySelector(".chart");
    map.cases.forEach((name, i) => part("case").add(new Option(name, i)));
    map.schemes.forEach((name, i) => part("scheme").add(new Option(name, i)));
    const hidden = { visible: false };
    const layout = {
      template: "none", margin: { l: 10, r: 10, t: 10, b: 10 }, hovermode: "closest", dragmode: "pan",
      xaxis: hidden, yaxis: { ...hidden, scaleanchor: "x" }, legend: { orientation: "h", y: -0.02, yanchor: "top" },
      uirevision: "stay",
    };
    const show = () => {
      const packed = map.utilisation[`${part("case").value}/${part("scheme").value}`];
      if (packed === undefined) {
        part("said").textContent = "This scheme has no allocation of this matrix.";
        Plotly.purge(chart);
        return;
      }
      const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
      const shares = Uint16Array.from({ length: bytes.length / 2 }, (_, i) => bytes[2 * i] + 256 * bytes[2 * i + 1]);
      const { data, fullest } = traces(map, cables, shares);
      part("said").textContent = `fullest link: ${fullest.toFixed(1)}%`;
      Plotly.react(chart, data, layout, { ...options, scrollZoom: true });
    };
    part("case").addEventListener("change", show);
    part("scheme").addEventListener("change", show);
    later(chart, show);
  }
})();
