// Elements of forms.

import { el } from "./dom.js";

// A named part of a view.
export const card = (name, ...inside) => el("section.card", { "aria-label": name }, el("h2", name), inside);

// True on devices with a touch screen and without a keyboard.
export const touched = matchMedia("(pointer: coarse)").matches;

// A line that screen readers read when it changes.
export const status = (text) => el("p.muted", { role: "status" }, text);

export const div = (kind, ...children) => el("div", { class: kind }, ...children);

export const button = (text, onclick, attributes) => el("button", { type: "button", onclick, ...attributes }, text);

export const labelled = (name, control) => el("label.field", el("span", name), control);

// A select of [value, shown] pairs or of values. chosen(value) is called when the user chooses another one.
export function select(options, value, chosen, attributes) {
	const entries = options.map((option) => (Array.isArray(option) ? option : [option, option]));
	return el(
		"select",
		{ ...attributes, value, onchange: (event) => chosen?.(event.target.value) },
		entries.map(([one, name]) => el("option", { value: one }, name)),
	);
}

// True if an event is meant for a field.
export const typing = ({ target }) => target.closest?.("input, textarea, select, dialog");

export function filePicker(name, accept, chosen, kind = "plain") {
	const input = el("input.unseen", { type: "file", accept, onchange: take });
	function take() {
		const [file] = input.files;
		input.value = "";
		if (file) chosen(file);
	}
	return el(`label.button.${kind}`, input, name);
}

// The items of a list, each in a row that stays the same element while it shows what changes: row(item) makes
// { element, show(item) }, and key(item) tells which is whose.
export function rowsOf(list, key, row) {
	const rows = new Map();
	function show(items) {
		const keys = items.map(key);
		for (const gone of [...rows.keys()].filter((one) => !keys.includes(one))) {
			rows.get(gone).element.remove();
			rows.delete(gone);
		}
		items.forEach((item, i) => {
			if (!rows.has(keys[i])) rows.set(keys[i], row(item));
			const { element, show: renew } = rows.get(keys[i]);
			renew(item);
			if (element !== list.children[i]) list.insertBefore(element, list.children[i]); // other rows stay in place, and keep the focus
		});
	}
	return { show, get: (one) => rows.get(one), all: () => [...rows.values()] };
}

export function choice(legend, options, value, chosen) {
	const name = legend.replaceAll(" ", "-");
	const radios = options.map(([one, shown]) => el("label", el("input", { type: "radio", name, checked: one === value, onchange: () => chosen(one) }), shown));
	return el("fieldset.choice", el("legend.unseen", legend), radios);
}

// A box for content that may be wider than the window, such as a table. It scrolls separately, also by keys.
export const scrolled = (name, inside) => el("div.scroll", { tabindex: "0", role: "region", "aria-label": name }, inside);

// A table from the cells of its head and the cells of each row.
export const table = (head, rows) => el("table", el("thead", el("tr", head)), el("tbody", rows.map((cells) => el("tr", cells))));

// A list of [name, value] pairs. Pairs with a false or missing value are left out.
export const facts = (given) =>
	el("dl.facts", given.filter(([, value]) => (value ?? false) !== false).map(([name, value]) => el("div", el("dt", name), el("dd.clip", value))));
