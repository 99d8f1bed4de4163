// Changes that lower the arena; each figure comes from a plan of the changed graph.

const KINDS = { option: "", model: "the same network, rewritten", "what-if": "what if: another network" };

function showAdvice(panel, model) {
  if (!model.advice) return;
  const { helping, vain, failed, stopped } = model.advice;
  panel.append(el("h3", "What would lower the arena"));
  const list = el("ol", null, { id: "advice" });
  for (const [kind, what, how, arena, saved, outside] of helping.slice(0, LISTED)) {
    const item = el("li");
    const line = el("div", null, { class: "advice" });
    const more = Number(outside) > 0 ? `, ${human(outside)} more outside the arena` : "";
    line.append(el("b", what), el("span", human(arena)), el("small", `${human(saved)} less${more}: ${how}`));
    if (KINDS[kind]) line.append(el("small", KINDS[kind]));
    item.append(line);
    list.append(item);
  }
  panel.append(list);
  if (!helping.length) panel.append(el("p", "No tried change."));
  if (vain.length) panel.append(inVain(vain));
  for (const text of failed) panel.append(el("p", `No plan: ${text}`, { class: "tried" }));
  if (stopped) panel.append(el("p", `Not everything was tried: ${stopped}.`));
}

// Keeps each idea on one line where the line is wide enough.
function inVain(ideas) {
  const paragraph = el("p", "Tried without success: ", { class: "tried" });
  ideas.forEach((idea, k) => paragraph.append(el("span", k < ideas.length - 1 ? `${idea};` : `${idea}.`), " "));
  return paragraph;
}
