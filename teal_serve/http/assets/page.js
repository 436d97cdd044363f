"use strict";
(() => {
  const EVERY_MS = 2000;
  const MAX_POINTS = 1000;
  const MAX_ROWS = 12;  // fullest links in the table; those that were changed stand before them
  const ENDED_BY = {
    gap: "target gap reached", deadline: "deadline", iterations: "limit of iterations", rounding: "rounding errors",
    next: "made for the next interval", model: "no search: the model alone",
  };
  const SOLVERS = { model: "model alone", "model-pdhg": "model, then PDHG", pdhg: "PDHG", hedge: "hedge" };
  const find = (id) => document.getElementById(id);
  const figure = (name) => document.querySelector(`[data-figure="${name}"]`);
  const percent = (share, digits = 2) => (share === null ? "\u2013" : `${(100 * share).toFixed(digits)}%`);
  // A name beside others: characters that turn the direction of text are shown, and end with the name.
  const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
  const plain = (text) => text.replace(TURNING, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const named = (text) => `\u2068${plain(text)}\u2069`;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // The network that is looked at: what is drawn, what its links are like now, what was answered.
  let shown = null;
  let token = sessionStorage.getItem("teal-token") ?? "";

  class Refused extends Error {}

  const ask = async (path, request = {}) => {
    const headers = { ...request.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const answer = await fetch(`v1/networks${path}`, { ...request, headers });
    if (answer.status === 401) throw new Refused();
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.message);
    return body;
  };

  const say = (text, alarm = false) => {
    if (find("state").textContent !== text) find("state").textContent = text;  // read aloud only when it changes
    find("state").classList.toggle("alarm", alarm);
  };

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const ours = () => ({
    paper_bgcolor: style("--paper"), plot_bgcolor: style("--paper"), font: { color: style("--ink") },
  });

  const drawMap = () => {
    if (!shown?.map) return;
    const shares = shown.links.map((link, i) => {
      if (link.in_force === 0) return NaN;
      return 100 * (shown.utilisation[i] ?? 0);
    });
    const map = { ...shown.map, capacity: shown.links.map((link) => link.in_force) };
    const { clientWidth: width, clientHeight: height } = find("map");
    const { data, fullest } = NetworkMap.traces(map, shown.cables, shares, style("--ink"), {
      width: width - 20, height: height - 100,  // without margins and legend
    });
    figure("fullest").textContent = shown.utilisation.length ? `${fullest.toFixed(1)}%` : "\u2013";
    const layout = { ...NetworkMap.layout, ...ours(), uirevision: shown.name };
    const mine = shown;
    Plotly.react(find("map"), data, layout, NetworkMap.options).then(() => {
      if (mine.listening) return;
      mine.listening = true;
      find("map").removeAllListeners("plotly_click");
      find("map").on("plotly_click", ({ points }) => {
        const cable = points.map((point) => point.customdata).find((number) => number !== undefined);
        if (cable !== undefined) find("cable").value = mine.names[cable];
      });
    });
  };

  const drawTime = () => {
    if (!shown) return;
    const when = shown.allocations.map((one) => new Date(1000 * one.time));
    const line = (name, key, axis, color) => ({
      x: when, y: shown.allocations.map((one) => (one[key] === null ? null : 100 * one[key])), name, yaxis: axis,
      mode: "lines+markers", marker: { size: 4 }, line: { color, width: 1.5 }, hovertemplate: "%{y:.3f}%",
    });
    const grid = {
      gridcolor: style("--line"), zerolinecolor: style("--line"), ticksuffix: "%", exponentformat: "none", automargin: true,
    };
    // What differs by less than this is noise, and no axis should make a mountain of it.
    const least = Math.min(...shown.allocations.map((one) => 100 * (one.satisfied_demand ?? 1)), 100);
    const widest = Math.max(...shown.allocations.map((one) => 100 * (one.gap ?? 0)), 0);
    const satisfied = [Math.max(0, Math.min(99, Math.floor(least) - 1)), 100.2];
    const layout = {
      ...ours(), margin: { l: 60, r: 14, t: 14, b: 34 }, hovermode: "x unified", showlegend: false, uirevision: shown.name,
      hoverlabel: { bgcolor: style("--soft"), font: { color: style("--ink") } },
      xaxis: { gridcolor: style("--line"), anchor: "y2", tickangle: 0, nticks: 5 },
      yaxis: { ...grid, domain: [0.55, 1], range: satisfied, title: { text: "satisfied demand" } },
      yaxis2: { ...grid, domain: [0, 0.45], title: { text: "certified gap" }, range: [0, Math.max(0.1, 1.1 * widest)] },
    };
    const data = [
      line("satisfied demand", "satisfied_demand", "y", style("--accent")), line("certified gap", "gap", "y2", "#c77700"),
    ];
    Plotly.react(find("time"), data, layout, { responsive: true, displaylogo: false });
  };

  const showFigures = () => {
    const last = shown.allocations.at(-1);
    figure("satisfied").textContent = last ? percent(last.satisfied_demand) : "\u2013";
    figure("gap").textContent = last ? percent(last.gap) : "\u2013";
    figure("solve").textContent = last ? `${last.solve_ms.toPrecision(3)} ms` : "\u2013";
    figure("solver").textContent = last ? SOLVERS[last.solver] ?? last.solver : "\u2013";
    figure("status").textContent = last ? ENDED_BY[last.status] ?? last.status : "\u2013";
    const times = (ratio) => (ratio ? `${ratio.toFixed(3)} \u00d7` : "\u2013");
    figure("realised").textContent = times(last?.realised);
    figure("limit").textContent = times(last?.limit);
    const only = (name, text) => {  // figures that few requests have
      figure(name).textContent = text ?? "";
      figure(name).parentElement.hidden = !text;
    };
    only("classes", last?.classes?.map((one) => `${one.class} ${percent(one.satisfied_demand)}`).join(", "));
    only("levels", last?.levels?.map((one) => `${one.level.toLocaleString("en", { maximumSignificantDigits: 3 })} (${one.demands})`).join(", "));
    only("protect", last?.protect);
    only("moved", last?.moved === undefined || last.moved === null ? "" : percent(last.moved));
    figure("when").textContent = last ? new Date(1000 * last.time).toLocaleTimeString() : "\u2013";
  };

  const showLinks = () => {
    const changed = shown.links.flatMap((link, i) => (link.in_force === link.capacity ? [] : [i]));
    const others = shown.links.map((_, i) => i).filter((i) => !changed.includes(i));
    if (shown.utilisation.length) others.sort((a, b) => shown.utilisation[b] - shown.utilisation[a]);
    const rows = [...changed, ...others.slice(0, MAX_ROWS)].map((i) => {
      const link = shown.links[i];
      const row = document.createElement("tr");
      const cell = (kind, text, name = "") => {
        const made = document.createElement(kind);
        made.textContent = text;
        made.className = name;
        row.append(made);
        return made;
      };
      const ends = `${named(link.source)} \u2192 ${named(link.target)}`;
      cell("th", ends).scope = "row";
      const down = link.in_force === 0;
      cell("td", down ? "down" : percent(shown.utilisation[i] ?? null, 1), down ? "number down" : "number");
      cell("td", Number(link.in_force.toPrecision(6)), "number");
      cell("td", Number(link.capacity.toPrecision(6)), "number");
      const last = cell("td", "");
      if (link.in_force !== link.capacity) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = "Restore";
        button.dataset.link = i;
        button.setAttribute("aria-label", `Restore ${ends}`);
        button.addEventListener("click", () => {
          change({ source: link.source, target: link.target, restore: true, both: false });
        });
        last.append(button);
      }
      return row;
    });
    const focused = document.activeElement?.dataset?.link;  // the keyboard stays where it was
    find("links").replaceChildren(...rows);
    if (focused !== undefined) find("links").querySelector(`[data-link="${focused}"]`)?.focus();
    const few = others.length > MAX_ROWS;
    find("shown").textContent = few ? `Changed links and the ${MAX_ROWS} fullest of ${shown.links.length}.` : "";
  };

  const change = async (link) => {
    const mine = shown;
    const buttons = [...document.querySelectorAll("main button")];
    const focused = document.activeElement;
    buttons.forEach((button) => { button.disabled = true; });
    try {
      const body = JSON.stringify({ links: [link] });
      const headers = { "Content-Type": "application/json" };
      const path = `/${encodeURIComponent(mine.name)}/links`;
      const said = await ask(path, { method: "PATCH", body, headers });
      if (said.links) mine.links = said.links;
      find("said").textContent = `${named(link.source)} - ${named(link.target)} changed: in force from the next allocation on.`;
      find("said").classList.remove("alarm");
      if (shown === mine) {
        drawMap();
        showLinks();
      }
    } catch (error) {
      find("said").textContent = error instanceof Refused ? "The service asks for a token." : error.message;
      find("said").classList.add("alarm");
    } finally {
      buttons.forEach((button) => { button.disabled = false; });
      if (document.contains(focused)) focused.focus();
    }
  };

  for (const button of document.querySelectorAll("[data-change]")) {
    button.addEventListener("click", () => {
      const cable = shown?.names?.indexOf(find("cable").value) ?? -1;
      find("cable").setCustomValidity(cable < 0 ? "Choose one of the links of this network." : "");
      find("capacity").required = button.dataset.change === "capacity";
      if (!find("change").reportValidity()) return;
      const [first] = shown.cables[cable].links;
      const { source, target } = shown.links[first];
      const what = {
        down: { up: false }, up: { up: true }, capacity: { capacity: find("capacity").valueAsNumber },
      }[button.dataset.change];
      change({ source, target, both: true, ...what });
    });
  }
  find("change").addEventListener("submit", (event) => event.preventDefault());
  find("cable").addEventListener("input", () => find("cable").setCustomValidity(""));

  const open = async (name) => {
    const map = await ask(`/${encodeURIComponent(name)}/map`);
    const cables = NetworkMap.cablesOf(map);
    map.nodes = map.nodes.map(plain);
    const names = cables.map(({ a, b }) => `${map.nodes[a]} - ${map.nodes[b]}`);
    find("cables").replaceChildren(...names.map((text) => new Option(text, text)));
    return { name, map, cables, names };
  };

  const refresh = async () => {
    const { networks, last_used: lastUsed } = await ask("");
    const select = find("network");
    if (networks.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
      const chosen = select.value;
      select.replaceChildren(...networks.map((name) => new Option(name, name)));
      const wanted = chosen || lastUsed;
      if (networks.includes(wanted)) select.value = wanted;
    }
    const name = select.value;
    if (!name) {
      shown = null;
      say("No network is registered: PUT /v1/networks/NAME, or teal serve --topology.");
      return;
    }
    const info = await ask(`/${encodeURIComponent(name)}`);
    if (info.state !== "ready") {
      shown = null;
      say(info.state === "failed" ? `cannot be used: ${info.error}` : "its paths are being computed\u2026", info.state === "failed");
      return;
    }
    const fresh = shown?.name !== name || shown.generation !== info.generation;
    if (fresh) {
      find("cable").value = "";
      find("said").textContent = "";
      const opened = await open(name);
      shown = { ...opened, generation: info.generation, links: info.links, allocations: [], utilisation: [] };
    }
    const after = shown.allocations.at(-1)?.time ?? 0;
    const recent = await ask(`/${encodeURIComponent(name)}/allocations?after=${after}`);
    if (select.value !== name) return;  // another one was chosen meanwhile
    const links = JSON.stringify(info.links) !== JSON.stringify(shown.links);
    shown.links = info.links;
    if (fresh || links || recent.allocations.length) {
      shown.allocations = [...shown.allocations, ...recent.allocations].slice(-MAX_POINTS);
      shown.utilisation = recent.utilisation;
      drawMap();
      drawTime();
      showFigures();
      showLinks();
    }
    say(`${info.nodes.length} nodes, ${info.links.length} links, ${info.demands} demands; ${info.objective}`);
  };

  let timer = 0;
  let running = false;
  const tick = async () => {
    clearTimeout(timer);
    if (running) return;
    running = true;
    try {
      await refresh();
      find("sign-in").hidden = true;
    } catch (error) {
      const refused = error instanceof Refused;
      find("sign-in").hidden = !refused;
      say(refused ? "The service asks for a token." : `No answer (${error.message}): asking again.`, true);
    } finally {
      running = false;
      if (!document.hidden) timer = setTimeout(tick, EVERY_MS);
    }
  };

  find("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    token = find("token").value.trim();
    sessionStorage.setItem("teal-token", token);
    find("token").value = "";
    tick();
  });
  find("network").addEventListener("change", tick);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
  dark.addEventListener("change", () => { drawMap(); drawTime(); });
  tick();
})();
