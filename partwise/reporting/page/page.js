"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const coarse = matchMedia("(pointer: coarse)").matches;

  // What a reader chose stays where the page is loaded again; a browser may forbid it.
  const remember = (key, value) => { try { sessionStorage.setItem("partwise-" + key, value); } catch { /* not kept */ } };
  const recall = (key) => { try { return sessionStorage.getItem("partwise-" + key); } catch { return null; } };

  // ---- light and dark
  const system = matchMedia("(prefers-color-scheme: dark)");
  const wear = () => { root.dataset.theme = recall("theme") || (system.matches ? "dark" : "light"); };
  wear();
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const faint = (hex, share) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${share})`;
  };

  // ---- which series are shown
  const boxes = [...document.querySelectorAll("input[data-toggle]")];
  const hidden = new Set();
  const look = () => {
    hidden.clear();
    for (const box of boxes) if (!box.checked) hidden.add(Number(box.dataset.toggle));
    for (const row of document.querySelectorAll("tr[data-series]")) row.classList.toggle("off", hidden.has(Number(row.dataset.series)));
    remember("hidden", JSON.stringify(boxes.filter((box) => !box.checked).map((box) => box.value)));
  };
  const before = new Set(JSON.parse(recall("hidden") || "[]"));
  for (const box of boxes) if (before.has(box.value)) box.checked = false;
  look();

  // ---- what traces look like
  const dress = {
    line: (t, own) => {
      const last = t.y.reduce((at, value, i) => (value === null ? at : i), -1);
      const few = t.x.length <= 2;
      return { type: "scatter", mode: "lines+markers", line: { color: own.colour, dash: own.dash, width: 2 },
        marker: { color: own.colour, symbol: own.mark, size: t.y.map((_, i) => (few || i === last ? 8 : 0)), line: { width: 0 }, opacity: 1 } };
    },
    band: (t, own) => ({ type: "scatter", mode: "lines", fill: "toself", fillcolor: faint(own.colour, 0.11), line: { width: 0 } }),
    stage: (t, own) => ({ type: "scatter", mode: "markers", marker: { symbol: "diamond-open", size: 11, color: own.colour, line: { width: 2 } } }),
    point: (t, own) => ({ type: "scatter", mode: "markers", marker: { symbol: own.mark, size: 12, color: own.colour },
      error_y: { ...t.error_y, color: faint(own.colour, 0.6), thickness: 1.5, width: 4 } }),
    box: (t, own) => ({ type: "box", orientation: "h", boxpoints: t.x.length > 200 ? "outliers" : "all", jitter: 0.5, pointpos: 0,
      line: { color: own.colour, width: 1.5 }, fillcolor: faint(own.colour, 0.14), marker: { color: own.colour, symbol: own.mark, size: 4, opacity: 0.55 }, width: 0.6 }),
    bar: (t, own) => ({ type: "bar", orientation: "h", marker: { color: own.colour, line: { width: 1, color: colour("card") },
      pattern: { shape: t.way === "up" ? "/" : "", fillmode: "overlay", fgcolor: colour("card"), fgopacity: 0.6, size: 6, solidity: 0.35 } } }),
    bubbles: (t, own, area) => {
      const most = Math.max(...t.sizes);
      const room = Math.max(5, Math.min(30, 0.92 * area[0] / t.shape[0], 0.92 * area[1] / t.shape[1]));
      return { type: "scatter", mode: "markers", marker: { size: t.sizes, sizemode: "area", sizeref: most / (room * room), sizemin: 1.5, color: colour("c0"), opacity: 0.85, line: { width: 0 } } };
    },
    map: (t) => ({ type: "heatmap", colorscale: [[0, colour("low")], [1, colour("high")]], zmin: t.range?.[0], zmax: t.range?.[1], hoverongaps: false, xgap: 1, ygap: 1,
      colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, tickfont: { color: colour("quiet") } } }),
    groups: (t) => {
      const most = t.colours.length;
      const steps = t.colours.flatMap((name, i) => [[i / most, colour(name)], [(i + 1) / most, colour(name)]]);
      return { type: "heatmap", colorscale: steps, zmin: -0.5, zmax: most - 0.5, showscale: false, xgap: 2, ygap: 2, texttemplate: t.written ? "%{z}" : "" };
    },
    class: (t, own) => ({ type: "scatter", mode: "markers", marker: { color: own.colour, symbol: own.mark, size: 6, opacity: 0.8 } }),
  };
  const frontier = (traces, sign) => {  // sign: -1 where lower is better
    const points = traces.filter((t) => t.visible !== false).map((t) => [t.x[0], t.y[0]]).sort((a, b) => a[0] - b[0] || sign * (b[1] - a[1]));
    const best = [];
    for (const point of points) if (!best.length || sign * point[1] > sign * best[best.length - 1][1]) best.push(point);
    if (best.length) best.push([Math.max(...points.map((p) => p[0])), best[best.length - 1][1]]);
    return { type: "scatter", mode: "lines", line: { color: colour("quiet"), dash: "dash", width: 1.2, shape: "hv" }, x: best.map((p) => p[0]), y: best.map((p) => p[1]), hoverinfo: "skip" };
  };

  const dressed = (view, area) => {
    const traces = view.traces.map((t) => {
      const [name, dash, mark] = t.look ?? ["c0", "solid", "circle"];
      const own = { colour: colour(name), dash, mark };
      return { ...t, ...dress[t.role](t, own, area), showlegend: Boolean(view.layout.showlegend), visible: !hidden.has(t.series) };
    });
    return view.frontier ? [frontier(traces, view.frontier), ...traces] : traces;
  };
  const axis = (own, narrow) => ({ automargin: true, gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, fixedrange: coarse, ...own,
    title: { standoff: 8, ...(own.title || {}), font: { size: narrow ? 12 : 13, color: colour("quiet") } } });

  // ---- drawing
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const shown = (figure) => {
    const chart = charts[figure.dataset.chart];
    const choice = figure.querySelector(".views input:checked, figcaption select");
    return [chart, chart.views[choice ? Number(choice.value) : 0]];
  };
  const draw = (figure) => {
    const [chart, view] = shown(figure);
    const plot = figure.querySelector(".plot");
    const narrow = plot.clientWidth < 520;
    const { xaxis, yaxis, parts, ...more } = view.layout;
    const rows = new Set(view.traces.filter((t) => t.series !== undefined && !hidden.has(t.series)).map((t) => t.series)).size;
    const height = chart.key === "ledger" ? 120 + 38 * Math.max(1, rows) : chart.height;
    plot.style.height = height + "px";
    const area = [plot.clientWidth - 90, height - 70];
    const layout = { height, margin: { l: narrow ? 44 : 56, r: 14, t: 10, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12, color: colour("text") }, showlegend: false,
      hovermode: narrow ? "closest" : "x unified", hoverlabel: { namelength: -1, bgcolor: colour("card"), bordercolor: colour("line"), font: { size: 12, color: colour("text") } },
      dragmode: coarse ? false : "zoom", legend: { orientation: "h", y: -0.05 }, ...more, xaxis: axis(xaxis || {}, narrow), yaxis: axis(yaxis || {}, narrow) };
    const config = { responsive: true, displaylogo: false, displayModeBar: coarse ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { format: "svg", filename: chart.key } };
    return Plotly.react(plot, dressed(view, area), layout, config);
  };
  const key = (figure) => {  // the parts of stacked bars, which are no series
    const [, view] = shown(figure);
    if (!view.layout.parts) return;
    const list = document.createElement("div");
    list.className = "key";
    view.layout.parts.forEach(([part, name]) => {
      const entry = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = `var(--${name})`;
      entry.append(mark, part);
      list.append(entry);
    });
    figure.querySelector("figcaption").append(list);
  };
  const breath = () => new Promise((go) => setTimeout(go));  // so that a reader can scroll meanwhile
  const redraw = () => figures.reduce((done, figure) => done.then(() => draw(figure)).then(breath), Promise.resolve());

  // ---- tables of numbers, made when they are asked for
  const tabulate = (figure) => {
    const place = figure.querySelector(".scroll");
    const table = document.createElement("table");
    shown(figure)[1].table.forEach((cells, i) => {
      const row = (i ? table.tBodies[0] || table.createTBody() : table.createTHead()).insertRow();
      cells.forEach((cell, j) => {
        const made = document.createElement(i && j ? "td" : "th");
        if (!i || !j) made.scope = i ? "row" : "col";
        made.textContent = cell;
        row.append(made);
      });
    });
    place.replaceChildren(table);
  };
  for (const figure of figures) {
    key(figure);
    const details = figure.querySelector("details.numbers");
    details.addEventListener("toggle", () => details.open && tabulate(figure));
    figure.querySelector("figcaption").addEventListener("change", () => { draw(figure); if (details.open) tabulate(figure); });
  }

  // ---- what a reader does
  for (const box of boxes) box.addEventListener("change", () => { look(); redraw(); });
  for (const button of document.querySelectorAll("[data-all]")) {
    button.addEventListener("click", () => { for (const box of boxes) box.checked = Boolean(button.dataset.all); look(); redraw(); });
  }
  document.getElementById("theme").addEventListener("click", () => {
    remember("theme", root.dataset.theme === "dark" ? "light" : "dark");
    wear();
    redraw();
  });
  system.addEventListener("change", () => { wear(); redraw(); });
  for (const head of document.querySelectorAll(".sortable thead th")) {
    head.addEventListener("click", () => {
      const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : column > 0;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value;
      const order = (a, b) => {
        if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);  // what is missing comes last, either way
        return (down ? -1 : 1) * (column ? a - b : a.localeCompare(b));
      };
      body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
    });
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => {
      const text = button.previousElementSibling;
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
      button.textContent = "copied";
    });
  }
  const chips = document.querySelector(".chips");
  const fit = () => root.style.setProperty("--chips", (chips ? chips.offsetHeight : 0) + "px");
  addEventListener("resize", fit);
  fit();
  redraw().then(() => { root.dataset.drawn = "yes"; });
})();
