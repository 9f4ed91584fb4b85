// Shows at once what the drawings' titles say; without it browsers show them after a second.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
for (const title of document.querySelectorAll("svg title")) {
  if (title.parentNode.localName !== "svg") title.parentNode.tipText = title.textContent;
  title.remove();
}
// An item of a stream is lit at every stage while the pointer is on it at one.
const light = (target) => {
  const item = target.closest?.("[data-item]");
  for (const drawing of document.querySelectorAll("svg.stream")) {
    const chosen = item && drawing.contains(item) ? item.dataset.item : null;
    if (drawing.dataset.lit === (chosen ?? "")) continue;
    drawing.dataset.lit = chosen ?? "";
    drawing.classList.toggle("chosen", chosen !== null);
    for (const part of drawing.querySelectorAll("[data-item]")) part.classList.toggle("lit", part.dataset.item === chosen);
  }
};
document.addEventListener("pointermove", (event) => {
  light(event.target);
  let at = event.target;
  while (at && !at.tipText) at = at.parentNode;
  tip.hidden = !at;
  if (!at) return;
  tip.textContent = at.tipText;
  const left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8));
  const below = event.clientY + tip.offsetHeight + 24 < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 12}px`;
});
