// Shows at once what the drawings' titles say; without it browsers show them after a second.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
for (const title of document.querySelectorAll("svg title")) {
  if (title.parentNode.localName !== "svg") title.parentNode.tipText = title.textContent;
  title.remove();
}
document.addEventListener("pointermove", (event) => {
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
