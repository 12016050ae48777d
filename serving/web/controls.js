// The pieces that forms are made of.

import { el, fill } from "./dom.js";

// A part of a view, with its name.
export const card = (name, ...inside) => el("section.card", { "aria-label": name }, el("h2", name), inside);

// Whether a finger points, and there is no keyboard.
export const touched = matchMedia("(pointer: coarse)").matches;

// A line that is read out when it changes.
export const status = (text) => el("p.muted", { role: "status" }, text);

export const div = (kind, ...children) => el("div", { class: kind }, ...children);

export const button = (text, onclick, attributes) => el("button", { type: "button", onclick, ...attributes }, text);

export const labelled = (name, control) => el("label.field", el("span", name), control);

// Of [value, shown] or of values; chosen(value) is called when another one is.
export function select(options, value, chosen, attributes) {
	const entries = options.map((option) => (Array.isArray(option) ? option : [option, option]));
	return el(
		"select",
		{ ...attributes, value, onchange: (event) => chosen?.(event.target.value) },
		entries.map(([one, name]) => el("option", { value: one }, name)),
	);
}

// Whether an event is meant for a field.
export const typing = ({ target }) => target.closest?.("input, textarea, select, dialog");

// A button that opens the browser's choice of a file.
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
		for (const gone of [...rows.keys()].filter((one) => !keys.includes(one))) rows.delete(gone);
		items.forEach((item, i) => {
			if (!rows.has(keys[i])) rows.set(keys[i], row(item));
			rows.get(keys[i]).show(item);
		});
		const elements = keys.map((one) => rows.get(one).element);
		if (elements.length !== list.children.length || elements.some((one, i) => one !== list.children[i])) fill(list, elements);
	}
	return { show, get: (one) => rows.get(one), all: () => [...rows.values()] };
}

// One of [value, shown]: radio buttons side by side.
export function choice(legend, options, value, chosen) {
	const name = legend.replaceAll(" ", "-");
	const radios = options.map(([one, shown]) => el("label", el("input", { type: "radio", name, checked: one === value, onchange: () => chosen(one) }), shown));
	return el("fieldset.choice", el("legend.unseen", legend), radios);
}

// What may be wider than the window, a table mostly: it scrolls by itself, by keys too.
export const scrolled = (name, inside) => el("div.scroll", { tabindex: "0", role: "region", "aria-label": name }, inside);

// Of elements: the cells of its head, and those of each row.
export const table = (head, rows) => el("table", el("thead", el("tr", head)), el("tbody", rows.map((cells) => el("tr", cells))));

// [name, value] each; values that are false or missing are left out.
export const facts = (given) =>
	el("dl.facts", given.filter(([, value]) => (value ?? false) !== false).map(([name, value]) => el("div", el("dt", name), el("dd.clip", value))));
