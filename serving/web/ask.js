// A question in a dialog.

import { button, div } from "./controls.js";
import { el } from "./dom.js";

// Return the input as FormData, or null if the user cancels. `fields` are elements with names; `ready(given)`
// says whether the answer may be given, by default always.
export function ask({ title, text, fields = [], action, danger = false, ready = () => true }) {
	return new Promise((resolve) => {
		const form = el("form", { method: "dialog", oninput: look, onsubmit: give });
		const yes = el("button", { class: danger ? "danger" : "primary", type: "submit" }, action);
		const box = el("dialog.dialog", { "aria-labelledby": "ask-title", onclose: leave }, form);
		const close = () => box.close();
		let answer = null;
		form.append(
			el("h2", { id: "ask-title" }, title),
			el("p", text),
			...fields,
			div("actions", button("Cancel", close), yes),
		);

		function look() {
			yes.disabled = !ready(new FormData(form));
		}

		function give() {
			answer = new FormData(form);
		}

		function leave() {
			window.removeEventListener("popstate", close);
			box.remove();
			resolve(answer);
		}

		look();
		window.addEventListener("popstate", close); // the user leaves the page of the question
		document.body.append(box);
		box.showModal();
		form.querySelector("input, select")?.focus();
	});
}
