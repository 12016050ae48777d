// Keys of a list of hits below a field: / leads to the field, arrows move, Escape leads back.

import { typing } from "./controls.js";

export function listen(field, list, signal) {
	document.addEventListener("keydown", (event) => pressed(event, field, list), { signal });
}

function pressed(event, field, list) {
	if (event.key === "/" && !typing(event) && !event.ctrlKey && !event.metaKey) {
		event.preventDefault();
		field.focus();
		field.select();
	}
	const stops = [field, ...list.querySelectorAll(".opens")];
	const at = stops.indexOf(event.target);
	if (at < 0) return;
	if (event.key === "Escape") field.focus();
	const next = stops[at + { ArrowDown: 1, ArrowUp: -1 }[event.key]];
	if (!next) return;
	event.preventDefault();
	next.focus({ preventScroll: true });
	next.scrollIntoView({ block: "nearest" });
}
