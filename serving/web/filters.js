// Filters on the fields that the metadata have. A filter has the format of the API: { field: { $in: […] } or { $gte, $lte } }.

import { button, div, labelled } from "./controls.js";
import { el, fill } from "./dom.js";
import { count, dated, json, parsed, readable } from "./format.js";

const SHOWN = 8; // maximum values shown for a field
const DAY = "2024-03-05".length;
const END = "T23:59:59.999Z"; // last moment of a day
const FEW = 12; // maximum numbers that are listed instead of a range
const OPEN = 2; // fields that are open at first
const COUNTED = 20; // values of a facet; other values have fewer documents

// A chip for a choice, which removes the choice.
export const chip = (text, off) => button([text, el("span", { "aria-hidden": "true" }, "×")], off, { class: "chip", title: "Take this away" });

// Return the filter in the address, or nothing if it is not a valid filter.
export function filterOf(text) {
	const filter = parsed(text);
	return isObject(filter) && !Array.isArray(filter) ? filter : {};
}

export const isEmpty = (filter) => Object.keys(filter).length === 0;

// The panel and the chips of what is chosen; `changed(filter)` is called whenever that changes. `counted`: the fields whose values
// have counts, which showCounts(facets) renews.
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
	const listed = controls.filter((one) => one.showCounts);
	return {
		panel: controls.length ? panel : null,
		chips,
		counted: listed.map(({ field }) => field),
		showCounts: (facets) => listed.forEach((one) => one.showCounts(facets?.[one.field], isEmpty(filter))),
	};
}

// Filters can't use fields that begin with $, objects, or strings that are too long to be listed.
const isOffered = ({ field, kinds, values }) => !field.startsWith("$") && (values.length > 0 || kinds.includes("number"));

// Order fields with listed values first, then fields that most documents have.
const byUse = (a, b) => b.complete - a.complete || covered(b) - covered(a);
const covered = ({ values }) => values.reduce((sum, { documents }) => sum + (documents ?? 0), 0);

// Return the parts of a condition as text, each with the condition that remains without it.
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
	const bound = (value) => readable(typeof value === "string" ? value.replace(END, "") : value);
	const said = range ? Object.entries(range).map(([name, value]) => `${bounds[name]} ${bound(value)}`).join(", ") : json(condition);
	return [{ field, text: `${field} ${said}`, rest: null }];
}

const isObject = (value) => value && typeof value === "object";
const only = (condition, names) => isObject(condition) && Object.keys(condition).every((name) => names.includes(name));
const rangeOf = (condition) => (only(condition, ["$gte", "$lte"]) ? condition : null);

function optionsOf(condition) {
	if (!isObject(condition)) return [condition];
	return only(condition, ["$in"]) && Array.isArray(condition.$in) ? condition.$in : null;
}

const shown = (value) => (value === "" ? "(empty)" : readable(value));

// The values or the range of one field.
function control(field, open, filter, set) {
	const many = !field.complete || field.values.length > FEW;
	const days = field.values.length > 0 && field.values.every(({ value }) => dated(value));
	const isRange = many && (days || field.kinds.includes("number"));
	const { body, show, showCounts } = isRange ? range(field, days, set) : choice(field, set);
	const seen = open || Object.hasOwn(filter, field.field);
	return { field: field.field, element: el("details.facet", { open: seen }, el("summary.clip", field.field), body), show, showCounts };
}

// A range of numbers or of days. The last day is included.
function range({ field, values, least, greatest }, days, set) {
	const type = days ? "date" : "number";
	const [low, high] = [least, greatest].map((placeholder) => el("input", { type, step: days ? null : "any", placeholder, onchange: change }));
	const bound = (input, end) => (days ? `${input.value}${end}` : input.valueAsNumber);
	const shown = (value) => (days ? String(value ?? "").slice(0, DAY) : (value ?? ""));

	// Browsers report each digit of a year that is typed.
	const unfinished = ({ value }) => days && value !== "" && value < "1000" && values.every((one) => one.value >= "1000");

	function change() {
		if (unfinished(low) || unfinished(high)) return;
		const bounds = { ...(low.value !== "" && { $gte: bound(low, "") }), ...(high.value !== "" && { $lte: bound(high, END) }) };
		set(field, isEmpty(bounds) ? null : bounds);
	}

	return {
		body: div("range", labelled("from", low), labelled("to", high)),
		show(filter) {
			const bounds = (Object.hasOwn(filter, field) && rangeOf(filter[field])) || {};
			low.value = shown(bounds.$gte);
			high.value = shown(bounds.$lte);
		},
	};
}

function choice({ field, kinds, values, complete }, set) {
	const telling = complete || values.some(({ documents }) => documents !== 1);
	const ordered = values.every(({ value }) => typeof value === "number") ? [...values].sort((a, b) => a.value - b.value) : values;
	const [list, others, name] = [el("div"), el("div"), el("summary")];
	const rest = el("details.rest", { hidden: true }, name, others);
	const boxes = new Map(); // keyed by the JSON of their value
	let current = [];

	const choose = (options) => set(field, options.length ? { $in: options } : null);

	function offer({ value, documents }) {
		const change = () => choose(box.checked ? [...current, value] : current.filter((one) => one !== value));
		const box = el("input", { type: "checkbox", checked: current.includes(value), onchange: change });
		const many = el("span.muted");
		const element = el("label.option", box, el("span.clip", { title: value }, shown(value)), many);
		(boxes.size < SHOWN ? list : others).append(element);
		boxes.set(json(value), { value, box, element, many, documents });
		rest.hidden = !others.hasChildNodes();
		name.textContent = `${others.childElementCount} more`;
	}

	// The counts of a facet, which has the most frequent values: they may be new. Without a facet, those of `all` documents or none.
	function showCounts(facet, all) {
		const found = new Map((facet ?? []).map((one) => [json(one.value), one.documents]));
		if (telling) facet?.filter(({ value }) => !boxes.has(json(value))).forEach(offer);
		const few = facet && facet.length < COUNTED;
		for (const [key, { element, many, documents }] of boxes) {
			const now = facet ? (found.get(key) ?? (few ? 0 : null)) : all ? documents : null;
			many.textContent = now === null ? "" : count(now);
			element.classList.toggle("muted", now === 0);
		}
	}

	function add({ target }) {
		const given = target.value.trim();
		const value = kinds.includes("string") || !Number.isFinite(Number(given)) ? given : Number(given);
		target.value = "";
		if (given && !current.includes(value)) choose([...current, value]);
	}

	if (telling) ordered.forEach(offer);
	showCounts(null, true);
	const other = !complete && el("input.other", { placeholder: "Another value", "aria-label": `Another value of ${field}`, onchange: add });
	return {
		body: [list, rest, other],
		showCounts: telling && showCounts,
		show(filter) {
			current = (Object.hasOwn(filter, field) && optionsOf(filter[field])) || [];
			boxes.forEach(({ value, box }) => (box.checked = current.includes(value)));
		},
	};
}
