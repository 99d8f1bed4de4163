// The trade-off curve of bytes and seconds: points are planned and checked, seconds are predicted.

const MARGIN = { left: 46, right: 16, top: 12, bottom: 30 };

function svg(tag, attributes, title) {
  const { namespaceURI } = document.querySelector("#frontier svg");
  const node = document.createElementNS(namespaceURI, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (title) node.append(Object.assign(document.createElementNS(namespaceURI, "title"), { textContent: title }));
  return node;
}

const percent = (share) => `${share < 0 ? "\u2212" : "+"}${Math.abs(share * 100).toFixed(1)} %`;

function showFrontier() {
  const block = document.getElementById("curve");
  if (!block) return;
  const read = JSON.parse(atob(block.textContent));
  const curve = {
    costs: read.costs, floors: read.floors, missed: read.missed,
    spots: read.spots.map(([bytes, seconds, extra, done, pieces]) => ({ bytes, seconds, extra, done, pieces })),
    steps: read.steps.map(([begin, end, seconds, of]) => ({ begin, end, seconds, of })),
  };
  const shown = Math.min(shownSpot, curve.spots.length - 1);
  const figure = document.getElementById("frontier");
  figure.hidden = false;
  figure.querySelector("figcaption").textContent = `Arena and more time than the plain program, predicted ${curve.costs}. Choose a point to see its plan.`;
  const { bytes, seconds, extra, done } = curve.spots[shown];
  document.getElementById("spot").textContent = `Shown below: ${sized(bytes)}, ${percent(extra)} (${spoken(seconds)} predicted); ${done}.`;
  figure.querySelector("ul").append(...sayings(curve).map((text) => el("li", text)));
  const drawn = figure.querySelector("svg");
  const redraw = () => drawn.replaceChildren(...drawFrontier(curve, shown, drawn.clientWidth, drawn.clientHeight));
  new ResizeObserver(redraw).observe(drawn);
  redraw();
  addEventListener("hashchange", () => location.reload());
}

const spoken = (seconds) => (seconds < 1 ? `${Number((seconds * 1000).toPrecision(3))} ms` : `${Number(seconds.toPrecision(4))} s`);

// The claim of each line, with the programs covered.
function sayings(curve) {
  const several = [
    "Points: programs that were planned; the checker has proven each plan. A program fits every larger budget too, so the line between points is a step function.",
    `Seconds are predicted ${curve.costs}; squares are programs with nodes in pieces.`,
  ];
  if (curve.steps.length) several.push(`Dashed: ${[...new Set(curve.steps.map(({ of }) => `no ${of}, takes less by the same prediction (a linear program)`))].join("; ")}. Where the search moved a node, a point may lie below.`);
  for (const [nbytes, of] of curve.floors) several.push(`Floor ${sized(nbytes)}: no ${of}, need less. Other splits of nodes are not covered.`);
  for (const [nbytes, words] of curve.missed) several.push(`Cross at ${sized(nbytes)}: ${words}.`);
  return several;
}

function drawFrontier(curve, shown, width, height) {
  const { spots, steps, floors, missed } = curve;
  const plain = spots[0].seconds / (1 + spots[0].extra);
  const more = (seconds) => (plain ? seconds / plain - 1 : 0);
  const right = Math.max(...spots.map(({ bytes }) => bytes)) * 1.04;
  const top = Math.max(0.01, ...spots.map(({ extra }) => extra), ...steps.map(({ seconds }) => more(seconds))) * 1.12;
  const toX = (bytes) => MARGIN.left + (bytes / right) * (width - MARGIN.left - MARGIN.right);
  const toY = (extra) => height - MARGIN.bottom - (extra / top) * (height - MARGIN.top - MARGIN.bottom);
  const parts = axes(width, right, top, toX, toY);
  floors.forEach(([nbytes, of], k) => {
    const [x, begin, end] = [toX(nbytes), toY(top), toY(0)];
    const words = `No ${of}, need less than ${sized(nbytes)}`;
    if (nbytes === Math.min(...floors.map(([each]) => each))) parts.push(svg("rect", { class: "none", x: toX(0), y: begin, width: x - toX(0), height: end - begin }, words));
    parts.push(svg("line", { class: k ? "floor tried" : "floor", x1: x, x2: x, y1: begin, y2: end }, words));
  });
  for (const { begin, end, seconds, of } of steps) {
    const y = toY(more(seconds));
    parts.push(svg("line", { class: "bound", x1: toX(begin), x2: toX(end), y1: y, y2: y }, `No ${of}, takes less than ${percent(more(seconds))} within ${sized(end)}, by the same prediction`));
  }
  for (const [nbytes, words] of missed) {
    const [x, y] = [toX(nbytes), toY(0) - 6];
    parts.push(svg("path", { class: "missed", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }, `${sized(nbytes)}: ${words}`));
  }
  parts.push(svg("path", { class: "curve", d: stair(cheapest(spots), right, toX, toY) }));
  return [...parts, ...spots.map((spot, k) => mark(spot, k, k === shown, toX(spot.bytes), toY(spot.extra)))];
}

// The points (largest first) that cost more than all larger points; other points are never the cheapest fitting program.
const cheapest = (spots) => spots.filter(({ extra }, k) => spots.slice(0, k).every((larger) => larger.extra <= extra));

function stair(spots, right, toX, toY) {
  let path = `M${toX(right)} ${toY(spots[0].extra)}`;
  spots.forEach(({ bytes, extra }, k) => {
    path += `${k ? `V${toY(extra)}` : ""}H${toX(bytes)}`;
  });
  return path;
}

function mark({ bytes, extra, done, pieces }, k, current, x, y) {
  const link = svg("a", { href: `#point-${k}`, "aria-label": `${sized(bytes)}, ${percent(extra)}`, ...(current ? { "aria-current": "true" } : {}) }, `${sized(bytes)}, ${percent(extra)} predicted; ${done}`);
  link.append(svg("circle", { class: "reach", cx: x, cy: y, r: 12 }));
  link.append(pieces ? svg("rect", { class: "mark", x: x - 4.5, y: y - 4.5, width: 9, height: 9 }) : svg("circle", { class: "mark", cx: x, cy: y, r: 5 }));
  return link;
}

function axes(width, right, top, toX, toY) {
  const parts = [];
  const text = (words, x, y, anchor) => parts.push(Object.assign(svg("text", { x, y, "text-anchor": anchor }), { textContent: words }));
  const step = 10 ** Math.floor(Math.log10(top)) * ([5, 2, 1].find((each) => top / (each * 10 ** Math.floor(Math.log10(top))) >= 2) ?? 0.5);
  for (let extra = 0; extra <= top; extra += step) {
    parts.push(svg("line", { class: "axis", x1: toX(0), x2: width - MARGIN.right, y1: toY(extra), y2: toY(extra) }));
    text(`+${Number((extra * 100).toPrecision(2))} %`, toX(0) - 6, toY(extra) + 4, "end");
  }
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(right) / Math.log(1024)));
  const count = width < 600 ? 4 : 8;
  const apart = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => right / (each * unit) <= count) ?? 1000;
  for (let bytes = 0; bytes <= right; bytes += apart * unit) text(human(bytes), toX(bytes), toY(0) + 15, bytes ? "middle" : "start");
  text("bytes of the arena", width - MARGIN.right, toY(0) + 28, "end");
  return parts;
}
