// Draw the report's figures with uPlot, and follow a live run.
(() => {
  "use strict";
  const HEIGHT_PX = 320, NARROW_PX = 520, ROWS = 2, ROW_PX = 14, GAP_PX = 8;
  let report, plots = [];

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // On a dark page colours are mixed with white, or blue would drown.
  const shade = (colour) => dark.matches
    ? "#" + [1, 3, 5].map((at) => Math.round(parseInt(colour.slice(at, at + 2), 16) * 0.6 + 102).toString(16)).join("") : colour;
  const form = () => document.querySelector(".controls");

  // Number as short as an axis has room for: 1,500 is 1.5k, 0.0003 is 3e-4.
  const brief = (value) => {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size >= 1e12 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace(/\.0e/, "e");
    for (const [unit, suffix] of [[1e9, "B"], [1e6, "M"], [1e4, "k"]])
      if (size >= unit) return +(value / (suffix === "k" ? 1e3 : unit)).toPrecision(4) + suffix;
    return String(+value.toPrecision(4));
  };

  // Rows of one table: [x, column, low, high, …], without rows that have no place on the axis.
  const columns = (table, names, axis, logX) => {
    const x = table[axis] || [], kept = [];
    for (let row = 0; row < x.length; row++) if (x[row] != null && (!logX || x[row] > 0)) kept.push(row);
    return [axis, ...names].map((name) => kept.map((row) => table[name][row]));
  };

  const series = (line) => {
    const points = line.style === "points";
    return {
      label: line.label, class: line.style, scale: line.right ? "right" : "left", stroke: shade(line.colour),
      width: { line: 2, faint: 1, dashed: 2, points: 0 }[line.style], alpha: line.style === "faint" ? 0.4 : 1,
      dash: line.style === "dashed" ? [8, 5] : undefined, spanGaps: true,
      points: { show: points, size: 9, fill: shade(line.colour) }, paths: points ? () => null : undefined,
      value: (_, value) => (value == null ? "–" : brief(value)),
    };
  };
  const edge = (line) => ({ label: line.label, class: "edge", scale: line.right ? "right" : "left", width: 0, points: { show: false }, spanGaps: true });

  const drawMarks = (axis) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([6, 5]);
    ctx.lineWidth = devicePixelRatio;
    ctx.textAlign = "center";
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    const free = Array(ROWS).fill(0);
    for (const mark of report.marks.toSorted((one, other) => one.at[axis] - other.at[axis])) {
      const at = mark.at[axis];
      if (at == null || at < plot.scales.x.min || at > plot.scales.x.max) continue;
      const x = Math.round(plot.valToPos(at, "x", true));
      ctx.strokeStyle = style({ guard: "--bad", spike: "--warn" }[mark.kind] || "--soft");
      if (mark.kind === "checkpoint") {
        const foot = bbox.top + bbox.height;
        ctx.save(); ctx.setLineDash([]); ctx.lineWidth = 2 * devicePixelRatio;
        ctx.beginPath(); ctx.moveTo(x, foot - 8 * devicePixelRatio); ctx.lineTo(x, foot); ctx.stroke();
        ctx.restore();
        continue;
      }
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      // Its words stand above the curves, in the first row with room beside those before.
      const half = ctx.measureText(mark.text).width / 2;
      const middle = Math.max(half, Math.min(ctx.canvas.width - half, x));
      const row = free.findIndex((end) => middle - half >= end);
      if (row < 0) continue;
      free[row] = middle + half + GAP_PX * devicePixelRatio;
      ctx.fillStyle = ctx.strokeStyle;
      ctx.fillText(mark.text, middle, bbox.top - (6 + row * ROW_PX) * devicePixelRatio);
    }
    ctx.restore();
  };

  const draw = (figure) => {
    const holder = document.querySelector(`#${CSS.escape(figure.name)} .plot`);
    const options = new FormData(form());
    const axis = options.get("axis"), logX = options.has("log_x");
    const logY = figure.log || (figure.name === "loss" && options.has("log_y"));
    const shown = [{ label: report.axes[axis], value: (_, value) => (value == null ? "–" : brief(value)) }];
    const bands = [], blocks = [];
    for (const line of figure.lines) {
      const table = report.tables[line.table], names = [line.column];
      shown.push(series(line));
      if (line.band) {
        bands.push({ series: [shown.length + 1, shown.length], fill: shade(line.colour) + "26" });
        shown.push(edge(line), edge(line));
        names.push(`${line.column}_low`, `${line.column}_high`);
      }
      blocks.push(columns(table, names, axis, logX));
    }
    const ink = style("--text"), grid = { stroke: style("--grid"), width: 1 };
    const values = (_, ticks) => ticks.map(brief);
    const axes = [
      { label: report.axes[axis], stroke: ink, grid, ticks: grid, values },
      { label: figure.left_label, scale: "left", stroke: ink, grid, ticks: grid, size: 64, values },
    ];
    if (figure.right) axes.push({ label: figure.right, scale: "right", side: 1, stroke: ink, grid: { show: false }, ticks: grid, size: 64, values });
    holder.replaceChildren();
    const width = holder.clientWidth;
    const plot = new uPlot({
      width, height: width < NARROW_PX ? HEIGHT_PX * 0.75 : HEIGHT_PX, series: shown, bands, axes,
      scales: { x: { time: false, distr: logX ? 3 : 1 }, left: { distr: logY ? 3 : 1 }, right: { range: (_, low, high) => [Math.min(0, low), high * 1.05 || 1] } },
      legend: { markers: { width: 2 } }, padding: [report.marks.some((mark) => mark.text) ? ROWS * ROW_PX + 4 : null, null, null, null], cursor: { sync: { key: "report" }, drag: { x: true, y: false } },
      hooks: { draw: [drawMarks(axis)] },
    }, uPlot.join(blocks), holder);
    holder.onkeydown = (event) => moveCursor(plot, event);
    plots.push({ name: figure.name, plot });
  };

  const moveCursor = (plot, event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!step) return;
    event.preventDefault();
    const last = plot.data[0].length - 1;
    const index = Math.max(0, Math.min(last, (plot.cursor.idx ?? (step > 0 ? -1 : last + 1)) + step));
    plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: plot.bbox.height / devicePixelRatio / 2 });
  };

  const savePng = (name) => {
    const canvas = plots.find((item) => item.name === name).plot.ctx.canvas;
    const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const pen = copy.getContext("2d");
    pen.fillStyle = style("--page");
    pen.fillRect(0, 0, copy.width, copy.height);
    pen.drawImage(canvas, 0, 0);
    Object.assign(document.createElement("a"), { href: copy.toDataURL(), download: `${name}.png` }).click();
  };

  const drawAll = () => {
    plots.forEach(({ plot }) => plot.destroy());
    plots = [];
    report.figures.forEach(draw);
    document.documentElement.dataset.drawn = plots.length;
  };
  const load = () => {
    report = JSON.parse(document.getElementById("report-data").textContent);
    const known = (axis) => Object.values(report.tables).some((table) => (table[axis] || []).some((value) => value != null));
    for (const option of form().elements.axis.options) option.disabled = !known(option.value);
    form().addEventListener("change", drawAll);
    form().addEventListener("reset", () => setTimeout(drawAll));
    form().addEventListener("submit", (event) => event.preventDefault());
    document.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", () => savePng(button.dataset.save)));
    drawAll();
  };
  const follow = async () => {
    try {
      const fresh = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
      const chosen = Object.fromEntries([...form().elements].filter((item) => item.name).map((item) => [item.name, item.type === "checkbox" ? item.checked : item.value]));
      document.querySelector("main").replaceWith(document.adoptNode(fresh.querySelector("main")));
      for (const [name, value] of Object.entries(chosen)) form().elements[name][typeof value === "boolean" ? "checked" : "value"] = value;
      load();
    } catch { /* the server has gone: what is shown stays */ }
  };

  load();
  const refresh = Number(document.querySelector("main").dataset.refreshS);
  if (refresh) setInterval(follow, refresh * 1000);
  dark.addEventListener("change", drawAll);
  addEventListener("resize", drawAll);
})();
