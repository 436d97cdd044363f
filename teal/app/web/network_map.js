"use strict";
// A network drawn with Plotly, links coloured by utilisation.  A map has nodes (names), x, y (of nodes), source and
// target (of links, nodes' numbers) and capacity (Gbit/s); shares are per cent of each link, NaN for a failed one.
const NetworkMap = (() => {
  const bins = [
    { least: 100.05, name: "over 100%", color: "#c2185b", width: 4.6 },
    { least: 99.5, name: "full", color: "#b5121b", width: 4.2 },
    { least: 90, name: "90 to 99%", color: "#ee6a2c", width: 3.4 },
    { least: 70, name: "70 to 90%", color: "#fdb845", width: 3 },
    { least: 40, name: "40 to 70%", color: "#7cc36a", width: 2.6 },
    { least: 10, name: "10 to 40%", color: "#3d8fd1", width: 2.2 },
    { least: -1, name: "under 10%", color: "#b9c2cf", width: 1.6 },
  ];
  const LARGE = 80;  // nodes, beyond which names would hide the map

  // Links between the same two nodes, in both directions, are one cable.
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

  const safe = (text) => text.replaceAll("<", "&lt;");
  const linkName = (map, link) => `${map.nodes[map.source[link]]} \u2192 ${map.nodes[map.target[link]]}`;

  // Plotly's traces, a cable in the colour of its fuller direction, and how full the fullest is.
  // Numbers of the nodes whose names fit into a drawing of so many pixels without covering each other; those with
  // many cables first, the others are read by pointing at them.
  const LETTER = 6.2, LINE = 13;  // pixels of a letter and of a line of text of 10 px
  const named = (map, cables, { width, height }) => {
    const degree = new Array(map.nodes.length).fill(0);
    cables.forEach(({ a, b }) => { degree[a] += 1; degree[b] += 1; });
    const span = (values) => Math.max(...values) - Math.min(...values) || 1;
    const scale = Math.min(width / span(map.x), height / span(map.y));
    const boxes = [];
    const shown = new Set();
    [...degree.keys()].sort((i, j) => degree[j] - degree[i]).forEach((node) => {
      const half = (LETTER * map.nodes[node].length) / 2;
      const x = scale * map.x[node], y = scale * map.y[node] + LINE;  // the middle of the name, above its node
      const covers = boxes.some((box) => Math.abs(box.x - x) < box.half + half && Math.abs(box.y - y) < LINE);
      if (covers) return;
      boxes.push({ x, y, half });
      shown.add(node);
    });
    return shown;
  };

  // Nodes far from the others (another continent) come nearer on a small drawing, and on any where they would leave the
  // others less than half of an axis: beyond the middle four fifths of the nodes, distance d is drawn as
  // r log(1 + d / r), r a fifth of their extent.
  const NARROW = 600;  // pixels
  const isFar = (values) => {
    const sorted = [...values].sort((a, b) => a - b), last = sorted.length - 1;
    const middle = sorted[Math.ceil(0.9 * last)] - sorted[Math.floor(0.1 * last)];
    return middle > 0 && sorted[last] - sorted[0] > 2 * middle;
  };
  const squeezed = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    const low = sorted[Math.floor(0.1 * (sorted.length - 1))], high = sorted[Math.ceil(0.9 * (sorted.length - 1))];
    const r = (high - low) / 5 || 1;
    return values.map((value) => {
      if (value > high) return high + r * Math.log1p((value - high) / r);
      return value < low ? low - r * Math.log1p((low - value) / r) : value;
    });
  };

  // Of a chart so wide and high, what is left for the drawing beside margins and legend.
  const inside = ({ width, height }) => ({ width: width - 20, height: height - 100 });

  const traces = (whole, cables, shares, ink, size = { width: 900, height: 480 }) => {
    const fitted = (values) => (size.width < NARROW || isFar(values) ? squeezed(values) : values);
    const map = { ...whole, x: fitted(whole.x), y: fitted(whole.y) };
    const failed = { name: "failed", color: ink, width: 1.6, dash: "dot" };
    const lines = new Map([...bins, failed].map((bin) => [bin, { x: [], y: [] }]));
    const points = { x: [], y: [], text: [], customdata: [] };
    let fullest = 0;
    cables.forEach(({ a, b, links }, cable) => {
      const working = links.filter((link) => !Number.isNaN(shares[link]));
      const most = Math.max(...working.map((link) => shares[link]), 0);
      fullest = Math.max(fullest, most);
      const bin = working.length ? bins.find((candidate) => most >= candidate.least) : failed;
      lines.get(bin).x.push(map.x[a], map.x[b], null);
      lines.get(bin).y.push(map.y[a], map.y[b], null);
      points.x.push((map.x[a] + map.x[b]) / 2);
      points.y.push((map.y[a] + map.y[b]) / 2);
      points.customdata.push(cable);
      points.text.push(links.map((link) => {
        const state = Number.isNaN(shares[link]) ? "failed" : `${shares[link].toFixed(1)}%`;
        return `${safe(linkName(map, link))}: ${state} of ${Number(map.capacity[link].toPrecision(4))} Gbit/s`;
      }).join("<br>"));
    });
    const large = map.nodes.length > LARGE;
    const shown = large ? new Set() : named(map, cables, size);
    return {
      fullest,
      data: [
        ...[...lines].map(([bin, { x, y }]) => ({
          // A class without links has a line of its own too, so that the legend explains all colours.
          x: x.length ? x : [null], y: y.length ? y : [null], mode: "lines", name: bin.name, hoverinfo: "skip",
          line: { color: bin.color, width: large ? bin.width / 1.6 : bin.width, dash: bin.dash ?? "solid" },
        })),
        {
          ...points, mode: "markers", showlegend: false, hovertemplate: "%{text}<extra></extra>",
          marker: { size: 12, opacity: 0 },
        },
        {
          x: map.x, y: map.y, text: map.nodes.map((name, node) => (shown.has(node) ? safe(name) : "")), showlegend: false,
          hovertext: map.nodes.map(safe), hoverinfo: "text",
          mode: large ? "markers" : "markers+text", textposition: "top center", textfont: { size: 10, color: ink },
          marker: { size: large ? 4 : 8, color: ink },
        },
      ],
    };
  };

  const hidden = { visible: false };
  const layout = {
    template: "none", margin: { l: 10, r: 10, t: 10, b: 10 }, hovermode: "closest", dragmode: "pan",
    xaxis: hidden, yaxis: { ...hidden, scaleanchor: "x" }, legend: { orientation: "h", y: -0.02, yanchor: "top" },
    uirevision: "stay",
  };
  const options = {
    responsive: true, displaylogo: false, scrollZoom: true, // No button sends the network to a server of Plotly's.
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendDataToCloud", "sendChartToCloud"],
  };

  return { cablesOf, linkName, inside, traces, layout, options };
})();
