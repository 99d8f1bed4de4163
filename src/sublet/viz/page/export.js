// The picture as a file: PNG from the canvases, SVG by drawing once more into a recorder of the calls.

// The part of a canvas context that a frame draws with, written as SVG.
class SvgContext {
  constructor(meter) {
    Object.assign(this, { meter, parts: [], path: "", dash: "", stack: [], open: 0, clips: 0 });
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, textAlign: "left", textBaseline: "middle" });
  }

  add(tag, attributes, text) {
    const written = Object.entries(attributes).map(([key, value]) => ` ${key}="${escaped(value)}"`).join("");
    this.parts.push(text === undefined ? `<${tag}${written}/>` : `<${tag}${written}>${escaped(text)}</${tag}>`);
  }

  group(attribute, value) {
    this.parts.push(`<g ${attribute}="${value}">`);
    this.open++;
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, textAlign, textBaseline, dash, open } = this;
    this.stack.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, textAlign, textBaseline, dash, open });
    this.open = 0;
  }

  restore() {
    this.parts.push("</g>".repeat(this.open));
    Object.assign(this, this.stack.pop());
  }

  translate(x, y) { this.group("transform", `translate(${x} ${y})`); }
  rotate(angle) { this.group("transform", `rotate(${(angle * 180) / Math.PI})`); }
  clip() {
    this.parts.push(`<clipPath id="clip${this.clips}"><path d="${this.path}"/></clipPath>`);
    this.group("clip-path", `url(#clip${this.clips++})`);
  }

  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${x} ${y}`; }
  lineTo(x, y) { this.path += `L${x} ${y}`; }
  rect(x, y, w, h) { this.path += `M${x} ${y}h${w}v${h}h${-w}z`; }
  arc(x, y, r) { this.path += `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`; }
  setLineDash(lengths) { this.dash = lengths.join(" "); }
  fill() { this.add("path", { d: this.path, fill: this.fillStyle, opacity: this.globalAlpha }); }
  fillRect(x, y, width, height) { this.add("rect", { x, y, width, height, fill: this.fillStyle, opacity: this.globalAlpha }); }
  stroke() {
    const { path, strokeStyle, lineWidth, dash, globalAlpha } = this;
    this.add("path", { d: path, fill: "none", stroke: strokeStyle, "stroke-width": lineWidth, "stroke-dasharray": dash || "none", opacity: globalAlpha });
  }

  strokeRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.stroke();
  }

  fillText(text, x, y) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    const baseline = this.textBaseline === "top" ? "text-before-edge" : "central";
    this.add("text", { x, y, fill: this.fillStyle, opacity: this.globalAlpha, "text-anchor": anchor, "dominant-baseline": baseline }, text);
  }

  measureText(text) { return this.meter.measureText(text); }
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// Characters that XML forbids are left out.
const escaped = (text) => String(text).replace(/[\u0000-\u0008\u000b-\u001f\ufffe\uffff]/g, "").replace(/[&<>"]/g, (found) => ENTITIES[found]);
const unpacked = (pixel) => css([pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]);

// Rectangles that the view shows, each at least half a pixel in size.
function drawRectangles(context, panel, view) {
  for (let i = 0; i < model.count; i++) {
    const x0 = Math.max(panel.x, atTime(panel, view, model.left[i]));
    const x1 = Math.min(panel.x + panel.w, atTime(panel, view, model.right[i]));
    const y0 = Math.max(panel.y, atByte(panel, view, model.top[i]));
    const y1 = Math.min(panel.y + panel.h, atByte(panel, view, model.bottom[i]));
    if (x1 < x0 || y1 < y0) continue;
    const bright = lit === null || lit[i] !== 0;
    context.fillStyle = unpacked((bright ? colours.fill : colours.dimFill)[colours.tones[i]]);
    context.strokeStyle = unpacked((bright ? colours.edge : colours.dimEdge)[colours.tones[i]]);
    context.fillRect(x0, y0, Math.max(0.5, x1 - x0), Math.max(0.5, y1 - y0));
    if (x1 - x0 >= 4 && y1 - y0 >= 4) context.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
  }
}

function pictureAsSvg() {
  const { width, height } = stage.getBoundingClientRect();
  const context = new SvgContext(base.getContext("2d"));
  context.fillStyle = look.paper;
  context.fillRect(0, 0, width, height);
  context.fillStyle = look.plot;
  context.fillRect(panels.map.x, panels.map.y, panels.map.w, panels.map.h);
  clipped(context, panels.map, () => drawRectangles(context, panels.map, state.view));
  drawAround(context, visibleLabels);
  const name = escaped(document.title);
  const space = document.querySelector("svg").namespaceURI; // the page holds no address of its own
  const head = `<svg xmlns="${space}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="11">`;
  return `${head}<title>${name}</title>${context.parts.join("\n")}</svg>\n`;
}

function pictureAsPng() {
  const canvas = el("canvas", null, { width: base.width, height: base.height });
  for (const layer of [base, overlay]) canvas.getContext("2d").drawImage(layer, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve));
}

function saveFile(blob, suffix) {
  const href = URL.createObjectURL(blob);
  const name = (model.title || "packing").replace(/[^\w.-]+/g, "_").slice(0, 80);
  el("a", null, { href, download: `${name}.${suffix}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

document.getElementById("svg").addEventListener("click", () => saveFile(new Blob([pictureAsSvg()], { type: "image/svg+xml" }), "svg"));
document.getElementById("png").addEventListener("click", async () => saveFile(await pictureAsPng(), "png"));
