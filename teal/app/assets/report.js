"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const maps = read("maps");
  const options = { ...NetworkMap.options, responsive: false, scrollZoom: false };  // a wheel scrolls the page
  // A finger scrolls the page too, instead of zooming.
  const dragging = matchMedia("(pointer: coarse)").matches ? { dragmode: false } : {};

  // Charts are drawn when they come into view, the others while nothing else happens, and all before printing.
  const draw = new Map();
  const make = (element) => {
    const made = draw.get(element);
    draw.delete(element);
    made?.();
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) make(entry.target);
  }, { rootMargin: "400px" });
  const later = (element, made) => { draw.set(element, made); seen.observe(element); };
  const idle = window.requestIdleCallback ?? ((call) => setTimeout(call, 50));
  const drawNext = () => {
    const next = draw.keys().next();
    if (next.done) return;
    make(next.value);
    idle(drawNext);
  };

  // Colours of the page, light or dark; paper is light.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name, printing) => printing
    ? { ink: "#1c2430", line: "#d9dde3", paper: "#fff" }[name]
    : getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const BLACK = "#000000";
  const CLEAR = "rgba(0,0,0,0)";
  const surface = (ink, printing) => ({
    paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, modebar: { bgcolor: CLEAR, color: ink, activecolor: ink },
    hoverlabel: { bgcolor: colour("paper", printing), bordercolor: ink, font: { color: ink } },
  });
  const themed = (figure, printing) => {
    const [ink, line] = [colour("ink", printing), colour("line", printing)];
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
    const minor = figure.layout.xaxis.minor;  // given, even empty, it would draw lines of its own
    const layout = { ...figure.layout, ...surface(ink, printing), font: { ...figure.layout.font, color: ink }, ...dragging,
      xaxis: { ...figure.layout.xaxis, ...axis, ...(minor ? { minor: { ...minor, gridcolor: line } } : {}) },
      yaxis: { ...figure.layout.yaxis, ...axis } };
    const inked = (part) => part?.color === BLACK ? { ...part, color: ink } : part;
    const data = figure.data.map((trace) => ({ ...trace, marker: inked(trace.marker), line: inked(trace.line) }));
    return { data, layout };
  };

  const drawn = new Map();  // element of each chart that is drawn -> a function that draws it again
  let isPrinting = false;
  const widths = new ResizeObserver((entries) => {
    if (isPrinting) return;
    for (const { target } of entries) {
      if (target.clientWidth && target.clientWidth !== target._fullLayout?.width) drawn.get(target)?.(false);
    }
  });
  const PRINTED = 660;  // CSS pixels of the width of a printed chart
  for (const [id, figure] of Object.entries(figures)) {
    const element = document.getElementById(id);
    const fit = (width) => {  // the legend stands below the plot, which keeps its height however many schemes there are
      const names = figure.data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name);
      const widest = Math.max(...names.map((name) => name.length), 1) * 6.5 + 60;
      const columns = Math.max(1, Math.floor((width - 70) / widest));
      return 350 + 19 * Math.ceil(names.length / columns);
    };
    element.style.minHeight = `${fit(element.clientWidth)}px`;
    const show = (printing) => {
      const { data, layout } = themed(figure, printing);
      const width = printing ? PRINTED : element.clientWidth;
      const size = { width, height: fit(width), autosize: false };
      const axis = layout.xaxis;
      if (axis.type === "category") axis.nticks = Math.min(axis.nticks, Math.floor((width - 70) / 14));  // CSS pixels a name
      Plotly.react(element, data, { ...layout, ...size }, options);
    };
    later(element, () => { drawn.set(element, show); show(false); widths.observe(element); });
  }
  const drawAgain = (printing) => drawn.forEach((show) => show(printing));
  dark.addEventListener("change", () => drawAgain(false));
  addEventListener("beforeprint", () => { isPrinting = true; [...draw.keys()].forEach(make); drawAgain(true); });
  addEventListener("afterprint", () => { isPrinting = false; drawAgain(false); });

  // Tables wider than the page say so.
  const say = () => {
    for (const region of document.querySelectorAll(".scroll")) {
      const edge = region.getBoundingClientRect().right;
      const hidden = [...region.querySelectorAll("thead th")].filter((th) => th.getBoundingClientRect().right > edge + 1);
      const more = region.nextElementSibling;
      const isAtEnd = region.scrollLeft + region.clientWidth >= region.scrollWidth - 1;
      more.hidden = region.scrollWidth <= region.clientWidth + 1;
      more.textContent = isAtEnd ? "\u2190 scroll back" : `scroll for ${hidden.length} more columns \u2192`;
    }
  };
  document.querySelectorAll(".scroll").forEach((region) => region.addEventListener("scroll", say, { passive: true }));
  addEventListener("resize", say);
  say();

  // Tables: a click on a heading sorts by it, the best first (most is best or least is best), another turns it round.
  for (const table of document.querySelectorAll("table")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      heading.firstElementChild.addEventListener("click", () => {
        const before = heading.getAttribute("aria-sort");
        const up = before ? before !== "ascending" : heading.dataset.best !== "most";
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
    const show = (printing) => {
      part("shown").textContent = `${map.cases[part("case").value]}, ${map.schemes[part("scheme").value]}`;
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
      const ink = colour("ink", printing);
      const size = { width: printing ? PRINTED : chart.clientWidth, height: chart.clientHeight };
      const { data, fullest } = NetworkMap.traces(map, cables, shares, ink, NetworkMap.inside(size));
      const hint = ". A click on the middle of a cable shows the loads without it, another click those with it.";
      part("said").textContent = `fullest link: ${fullest.toFixed(1)}%${map.case_without && !printing ? hint : ""}`;
      const layout = { ...NetworkMap.layout, ...surface(ink, printing), ...size, ...dragging, font: { color: ink } };
      Plotly.react(chart, data, layout, options);
      if (!map.case_without) return;
      chart.removeAllListeners("plotly_click");  // they are gone after a purge, and kept otherwise
      chart.on("plotly_click", click);
    };
    part("case").addEventListener("change", () => show(false));
    part("scheme").addEventListener("change", () => show(false));
    const click = ({ points }) => {
      const cable = cables[points.find((point) => point.customdata !== undefined)?.customdata];
      const found = (cable?.links ?? []).map((link) => map.case_without[link]).filter((number) => number >= 0);
      if (!found.length) return;
      const number = Math.min(...found);  // of parallel cables that whose failure is worst
      part("case").value = Number(part("case").value) === number ? 0 : number;
      if (!(`${part("case").value}/${part("scheme").value}` in map.utilisation)) part("scheme").value = 0;
      show(false);
    };
    later(chart, () => { drawn.set(chart, show); show(false); widths.observe(chart); });
  }
  idle(drawNext);
})();
