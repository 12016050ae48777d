// Filters, offered from what the metadata hold. A filter is the API's own: { field: { $in: […] } or { $gte, $lte } }.

import { button, div, labelled } from "./controls.js";
import { el, fill } from "./dom.js";
import { count, json, parsed, written } from "./format.js";

const SHOWN = 8; // values of a field
const FEW = 12; // numbers that are offered one by one, and not as a range
const OPEN = 2; // fields whose values are seen at once

// Something chosen, that can be taken back.
export const chip = (text, off) => button([text, el("span", { "aria-hidden": "true" }, "×")], off, { class: "chip", title: "Take this away" });

// What the address says; nothing where it is no filter.
export function filterOf(text) {
	const filter = parsed(text);
	return isObject(filter) && !Array.isArray(filter) ? filter : {};
}

export const isEmpty = (filter) => Object.keys(filter).length === 0;

// The panel and the chips of what is chosen; `changed(filter)` is called whenever that changes.
export function filters(fields, chosen, changed) {
	let filter = chosen;
	const chips = div("chips");
	const offered = fields.filter(isOffered).sort(byUse);
	const controls = offered.map((field, i) => control(field, i < OPEN, filter, set));

	function set(field, condition) {
		filter = Object.fromEntries(Object.entries({ ...filter, [field]: condition }).filter(([name, one]) => one || name !== field));
		show();
		changed(filter);
	}

	function show() {
		controls.forEach((one) => one.show(filter));
		const all = Object.entries(filter).flatMap(([field, condition]) => parts(field, condition));
		fill(chips, all.map(({ field, text, rest }) => chip(text, () => takeAway(field, rest))));
	}

	function takeAway(field, rest) {
		set(field, rest);
		chips.querySelector("button")?.focus();
	}

	show();
	const summary = el("summary", "Filters");
	const panel = el("details.filters", { open: matchMedia("(min-width: 50rem)").matches }, summary, controls.map(({ element }) => element));
	return { panel: controls.length ? panel : null, chips };
}

// No filter begins with $ or asks for an object; texts too long to be listed are no choice.
const isOffered = ({ field, kinds, values }) => !field.startsWith("$") && (values.length > 0 || kinds.includes("number"));

// First those that can be chosen from, then those that tell of most documents.
const byUse = (a, b) => b.complete - a.complete || covered(b) - covered(a);
const covered = ({ values }) => values.reduce((sum, { documents }) => sum + (documents ?? 0), 0);

// A condition as it is said, each with what is left of it without that part.
function parts(field, condition) {
	const options = optionsOf(condition);
	if (options) {
		return options.map((option) => {
			const others = options.filter((other) => other !== option);
			return { field, text: `${field}: ${shown(option)}`, rest: others.length ? { $in: others } : null };
		});
	}
	const range = rangeOf(condition);
	const bounds = { $gte: "≥", $lte: "≤" };
	const said = range ? Object.entries(range).map(([name, bound]) => `${bounds[name]} ${bound}`).join(", ") : json(condition);
	return [{ field, text: `${field} ${said}`, rest: null }];
}

const isObject = (value) => value && typeof value === "object";
const only = (condition, names) => isObject(condition) && Object.keys(condition).every((name) => names.includes(name));
const rangeOf = (condition) => (only(condition, ["$gte", "$lte"]) ? condition : null);

function optionsOf(condition) {
	if (!isObject(condition)) return [condition];
	return only(condition, ["$in"]) && Array.isArray(condition.$in) ? condition.$in : null;
}

const shown = (value) => (value === "" ? "(empty)" : written(value));

// The values or the range of one field.
function control(field, open, filter, set) {
	const isRange = field.kinds.includes("number") && (!field.complete || field.values.length > FEW);
	const { body, show } = isRange ? range(field, set) : choice(field, set);
	const seen = open || Object.hasOwn(filter, field.field);
	return { element: el("details.facet", { open: seen }, el("summary.clip", field.field), body), show };
}

function range({ field, least, greatest }, set) {
	const [low, high] = [least, greatest].map((placeholder) => el("input", { type: "number", step: "any", placeholder, onchange: change }));

	function change() {
		const bounds = { ...(low.value !== "" && { $gte: low.valueAsNumber }), ...(high.value !== "" && { $lte: high.valueAsNumber }) };
		set(field, isEmpty(bounds) ? null : bounds);
	}

	return {
		body: div("range", labelled("from", low), labelled("to", high)),
		show(filter) {
			const bounds = (Object.hasOwn(filter, field) && rangeOf(filter[field])) || {};
			low.value = bounds.$gte ?? "";
			high.value = bounds.$lte ?? "";
		},
	};
}

function choice({ field, kinds, values, complete }, set) {
	const telling = complete || values.some(({ documents }) => documents !== 1);
	const ordered = values.every(({ value }) => typeof value === "number") ? [...values].sort((a, b) => a.value - b.value) : values;
	const boxes = (telling ? ordered : []).map(({ value, documents }) => {
		const change = () => choose(box.checked ? [...current, value] : current.filter((one) => one !== value));
		const box = el("input", { type: "checkbox", onchange: change });
		const many = documents !== null && el("span.muted", count(documents));
		return { value, box, element: el("label.option", box, el("span.clip", shown(value)), many) };
	});
	let current = [];

	const choose = (options) => set(field, options.length ? { $in: options } : null);

	function add({ target }) {
		const given = target.value.trim();
		const value = kinds.includes("string") || !Number.isFinite(Number(given)) ? given : Number(given);
		target.value = "";
		if (given && !current.includes(value)) choose([...current, value]);
	}

	const rest = boxes.slice(SHOWN);
	const body = [
		boxes.slice(0, SHOWN).map(({ element }) => element),
		rest.length > 0 && el("details.rest", el("summary", `${rest.length} more`), rest.map(({ element }) => element)),
		!complete && el("input.other", { placeholder: "Another value", "aria-label": `Another value of ${field}`, onchange: add }),
	];
	return {
		body,
		show(filter) {
			current = (Object.hasOwn(filter, field) && optionsOf(filter[field])) || [];
			boxes.forEach(({ value, box }) => (box.checked = current.includes(value)));
		},
	};
}
