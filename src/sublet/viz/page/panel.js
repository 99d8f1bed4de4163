// Text: the header, the legend, the tip at the pointer and the panel at the side.
// Names come from untrusted files, and are only ever set as text, never as HTML.

const LISTED = 150;

function el(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.append(...breakable(String(text)));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// Allows line breaks in a long name after separators, without changing the text.
function breakable(text) {
  const parts = text.split(/(?<=[/_.:])(?=\w)/);
  return parts.length > 64 ? [text] : parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

function facts(rows) {
  const list = el("dl", null, { class: "facts" });
  for (const [key, value] of rows) if (value !== "") list.append(el("dt", key), el("dd", value));
  return list;
}

function writeHeader(model) {
  const figures = model.figures;
  const title = model.title || "packing";
  const unproven = model.figures.claimed;
  document.title = `${title}${unproven ? ` (${unproven})` : ""} · memory map`;
  document.getElementById("title").textContent = title;
  document.getElementById("claimed").textContent = unproven;
  document.getElementById("claimed").hidden = !unproven;
  const times = Number(figures.arena) > 0 ? Number(figures.total) / Number(figures.arena) : 1;
  const blocks = model.blocks.offset.length;
  const names = model.points.length ? model.placesOf.size : model.placements.name.length;
  const packing = model.points.length === 0 && names === blocks;
  const cells = [
    ...(several(model) ? arenaCells(model) : [
      ["Arena", human(figures.arena), `${exact(figures.arena)} B`],
      ["Lower bound", figures.lowerBound === null ? "" : human(figures.lowerBound), model.coverage ? "of the planned part" : figures.boundSource],
      ["Gap", figures.proof, figures.claimed || (figures.gap === 0 ? "no packing is smaller" : "")],
    ]),
    ["Budget", model.budget === null || hasBudgetLine(model) ? "" : human(model.budget), several(model) ? "for all arenas" : "far above the arena"],
    ...(model.others.length ? [] : [["Without reuse", human(figures.total), times > 1 ? `${exact(times < 100 ? Number(times.toPrecision(3)) : Math.round(times))} × the ${several(model) ? "arenas" : "arena"}` : ""],
    ["Saved by views", human(figures.views), ""],
    ["Saved in place", human(figures.inplace), ""]]),
    ["Buffers", packing ? exact(blocks) : "", ""],
    ["Tensors", packing || model.others.length ? "" : exact(names), `in ${plural(blocks, "buffer", "buffers")}`],
    ["Strategy", model.others.length ? "" : figures.strategy, ""],
    ["Alignment", model.others.length ? "" : `${exact(figures.alignment)} B`, ""],
    ...(model.others.length ? [] : figures.bound).map(([kind, bytes]) => [`Outside: ${kind}`, human(bytes), ""]),
  ];
  for (const [key, value, note] of cells) {
    if (value === "" || (value === "0 B" && /^(Saved|Outside)/.test(key))) continue;
    const cell = el("div");
    const number = el("dd", value);
    if (note) number.append(" ", el("small", note));
    cell.append(el("dt", key), number);
    document.getElementById("figures").append(cell);
  }
}

// The values not counted by the figures, with reasons, and the assumptions of the figures.
function writeCoverage(model) {
  const assumed = document.getElementById("assumed");
  assumed.textContent = model.assumed ? `Assumed: ${model.assumed}` : "";
  assumed.hidden = !model.assumed;
  if (!model.coverage) return;
  const outside = document.getElementById("outside");
  outside.querySelector("summary").append(...breakable(model.coverage));
  const list = outside.querySelector("ul");
  for (const [name, type, reason] of model.outside.slice(0, 10 * LISTED)) {
    const item = el("li");
    item.append(el("b", name), " ", el("span", type), " ", el("small", reason));
    list.append(item);
  }
  const more = model.outside.length - 10 * LISTED;
  if (more > 0) list.append(el("li", `and ${exact(more)} more`));
  outside.hidden = false;
}

function swatch(draw) {
  const scale = 2;
  const canvas = el("canvas", null, { width: 16 * scale, height: 11 * scale });
  canvas.style.width = "16px";
  canvas.style.height = "11px";
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  draw(context);
  return canvas;
}

function writeLegend(model, mode, colours, look) {
  const list = document.getElementById("legend");
  const entry = (draw, text) => {
    const item = el("li");
    item.append(swatch(draw), el("span", text));
    return item;
  };
  const box = (colour) => (context) => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 16, 11);
  };
  const line = (colour, dash, upright) => (context) => {
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(upright ? 8 : 0, upright ? 0 : 5.5);
    context.lineTo(upright ? 8 : 16, upright ? 11 : 5.5);
    context.stroke();
  };
  const hatch = (context) => {
    context.strokeStyle = look.frame;
    for (let x = -8; x < 16; x += 4) {
      context.beginPath();
      context.moveTo(x, 11);
      context.lineTo(x + 11, 0);
      context.stroke();
    }
  };
  list.replaceChildren(
    ...mode.legend.map(([tone, text]) => entry(box(css(colours.fills[tone])), text)),
    ...(model.blockPieces.block.length ? [entry(hatch, "kept for the buffer")] : []),
    entry(line(look.curve, []), `live bytes${whose(model)}`),
    entry(line(look.arena, []), "arena"),
    ...(model.figures.lowerBound === null ? [] : [entry(line(look.bound, [5, 3]), "lower bound")]),
    entry(line(look.peak, [], true), `peak${whose(model)}`),
    ...(!hasBudgetLine(model) ? [] : [entry(line(look.peak, [2, 3]), `budget ${human(model.budget)}`)]),
    ...model.others.map(({ label }) => entry(line(look.other, []), `live bytes of ${label}`)),
  );
}

// The facts on one value, as rows of a table.
function factsOf(model, place) {
  const { name, word, spec, producer, op, source, shares, how, offset, nbytes } = model.placements;
  const pieces = Array.from(model.piecesOf(place));
  const shown = pieces.slice(0, 6).map((i) => aliveText(model, i));
  if (pieces.length > shown.length) shown.push(`and ${pieces.length - shown.length} more times`);
  const sharer = word[shares[place]];
  const others = sharingChain(model, place).filter((other) => other !== place);
  const named = others.slice(0, 4).map((other) => `${name[other]} (${HOWS[how[other]]})`);
  if (others.length > named.length) named.push(`and ${others.length - named.length} more`);
  return [
    ["Tensor", word[spec[place]]],
    ["Bytes", sized(nbytes[place])],
    ["Producer", [word[producer[place]], word[op[place]]].filter(Boolean).join(", ")],
    ["Comes from", word[source[place]]],
    ["Live", shown.join("; ")],
    ["Iterations", word[model.placements.rounds[place]]],
    ["Address", addressText(model, offset[place], nbytes[place])],
    ["How", sharer ? `${HOWS[how[place]]} of ${sharer}` : others.length ? HOWS[how[place]] : ""],
    ["Shared with", named.join(", ")],
  ];
}

function addressText(model, offset, nbytes) {
  const begin = ownAddress(model, offset);
  return `${exact(begin)} to ${exact(sum(begin, nbytes))}${inArena(model, offset)}`;
}

// Live ranges are half-open in the model, and closed in texts for people (first point to last point).
function aliveText(model, i) {
  const first = model.left[i];
  const last = model.right[i] - 1;
  if (first >= last) return `only at ${pointName(model, first)}`;
  const count = plural(last - first + 1, "point", "points");
  return `from ${pointName(model, first)} to ${pointName(model, last)} (${count})`;
}

function showTip(tip, x, y, title, rows) {
  tip.replaceChildren(el("strong", title), facts(rows));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = x + 16 + box.width < innerWidth ? x + 16 : Math.max(4, x - box.width - 12);
  const low = y + 18 + box.height < innerHeight ? y + 18 : Math.max(4, y - box.height - 12);
  tip.style.transform = `translate(${Math.round(right)}px, ${Math.round(low)}px)`;
}

// A list of tensors to step to: [place, note at the right, line below].
function tensorList(model, colourOf, current, entries, choose) {
  const list = el("ol");
  for (const [place, note, below] of entries.slice(0, LISTED)) {
    const button = el("button", null, { type: "button", title: model.placements.name[place] });
    const dot = el("i");
    dot.style.background = colourOf(place);
    button.append(dot, el("b", model.placements.name[place]), el("span", note), el("small", below));
    if (place === current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => choose(place));
    const item = el("li");
    item.append(button);
    list.append(item);
  }
  return list;
}

function section(panel, title, entries, list, empty) {
  panel.append(el("h3", title));
  if (entries.length) panel.append(list(entries));
  else panel.append(el("p", empty));
  if (entries.length > LISTED) panel.append(el("p", `and ${exact(entries.length - LISTED)} more`));
}

function showReuse(panel, model, colourOf, place, reuse, choose) {
  const list = (entries) => tensorList(model, colourOf, place, entries, choose);
  const { word, how, shares, nbytes, name } = model.placements;
  const when = (i) => aliveText(model, i);
  const reused = ([i, bytes]) => [model.placement[i], human(bytes), when(i)];
  const sharing = (other) => {
    const by = word[shares[other]];
    const first = model.piecesOf(other)[0];
    const relation = by ? `${HOWS[how[other]]} of ${by}` : HOWS[how[other]];
    return [other, human(nbytes[other]), first === undefined ? relation : `${relation}, ${when(first)}`];
  };
  panel.replaceChildren(el("h2", name[place]), facts(factsOf(model, place).filter(([key]) => key !== "Shared with")));
  if (model.rings.has(place)) showRing(panel, model, model.rings.get(place), list);
  if (reuse.chain.length > 1) {
    section(panel, `Sharing one buffer: ${plural(reuse.chain.length, "tensor", "tensors")}`, reuse.chain.map(sharing), list, "");
  }
  section(panel, "Before, in these bytes", reuse.before.map(reused), list, "None: first use of these bytes.");
  if (reuse.between.length) {
    section(panel, "Between the live ranges, in these bytes", reuse.between.map((i) => [model.placement[i], "", when(i)]), list, "");
  }
  section(panel, "After, in these bytes", reuse.after.map(reused), list, "None: last use of these bytes.");
  panel.scrollTop = 0;
}

function showPoint(panel, model, colourOf, point, choose) {
  const alive = aliveAt(model, point);
  const atPeak = point === model.peak.point;
  panel.replaceChildren(el("h2", atPeak ? `At the peak${whose(model)}` : "At this point"));
  panel.append(facts([
    ["Point", pointName(model, point)],
    ...liveRows(model, point, atPeak ? model.peak.exact : undefined),
    ["Tensors", exact(alive.length)],
  ]));
  const entries = alive.map((i) => {
    const place = model.placement[i];
    const spec = model.placements.word[model.placements.spec[place]];
    return [place, human(model.placements.nbytes[place]), `${spec}${inArena(model, model.placements.offset[place])}`];
  });
  section(panel, "Live here, largest first", entries, (shown) => tensorList(model, colourOf, -1, shown, choose), "Nothing.");
  panel.scrollTop = 0;
}
