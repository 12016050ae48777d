// View of a corpus in two dimensions.

import { call } from "../api.js";
import { link } from "../app.js";
import { areas } from "../areas.js";
import { chooser, noDocuments, wanted } from "../chooser.js";
import { button, choice, div, labelled, scrolled, select, status, table } from "../controls.js";
import { el, fill } from "../dom.js";
import { count, counted, date } from "../format.js";
import { grouped, hued } from "../groups.js";
import { followWork } from "../jobs.js";
import { Plot } from "../plot.js";
import { tryIt } from "../snippets.js";
import { failure, left, loading } from "../states.js";

const LISTED = 100; // passages on a page of the table
const POINTS = 50_000;
const NOTED_MS = 200;
const NEARER = 1.5; // zoom from which the visible points get their own areas
const REMEMBERED = 5000; // maximum chosen points that are remembered
const FREQUENT = 8; // number of values by which a field is judged
const TELLING = 0.2; // of the documents must have one of them, for a field to be more at first sight than no colour
const KEYS = "Map. Arrow keys move, plus and minus zoom, 0 shows all, Enter lists what is in view, Escape clears. The table below has the same.";
const NONE = "-"; // in the address: no field, where leaving it out means the one that suits best

export async function show(place, state) {
	const { listed, corpus } = await wanted(place, state);
	if (!corpus) return;
	const path = `corpora/${corpus.name}`;
	const { fields } = await call(`${path}/fields?values=${FREQUENT}`, { signal: state.signal });
	await new Chart(place, state, listed, corpus, path, fields).start();
}

class Chart {
	constructor(place, state, listed, corpus, path, fields) {
		Object.assign(this, { place, state, listed, corpus, path });
		this.fields = fields.filter(({ kinds }) => kinds.some((kind) => ["string", "number", "boolean", "list"].includes(kind)));
		const asked = state.address.get("field");
		this.field = asked === NONE ? "" : (asked ?? this.telling());
	}

	// Return the field whose most frequent values occur in most documents.
	telling() {
		const had = ({ kinds, values }) => (kinds.includes("number") || values.length < 2 ? 0 : values.reduce((sum, { documents }) => sum + documents, 0));
		const [best] = this.fields.toSorted((one, other) => had(other) - had(one));
		return best && had(best) > TELLING * this.corpus.documents ? best.field : "";
	}

	start() {
		const { state, place } = this;
		this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": KEYS });
		this.tip = el("div.tip", { hidden: true });
		this.labels = div("labels");
		this.labels.setAttribute("aria-hidden", "true"); // the legend has the same
		this.about = status();
		this.legend = el("ul.legend");
		this.list = el("section.card", { "aria-label": "Chosen passages", hidden: true });
		this.table = el("details.try", { ontoggle: () => this.tabulate(0) }, el("summary", "As a table"), el("div"));
		this.tried = tryIt();
		this.plot = new Plot(this.canvas, {
			hover: (point, x, y) => this.point(point, x, y),
			chosen: (chosen) => this.choose(chosen),
			moved: () => this.moved(),
		});
		this.plane = div("plane", div("stage", this.canvas, this.labels, this.tip, this.tools()), this.legend);
		this.failed = el("div");
		this.better = div("row better");
		this.work = el("div");
		fill(place, div("row", this.controls()), this.about, this.better, this.work, this.failed, this.plane, this.list, this.table, this.tried.element);
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint(), { signal: state.signal });
		this.follow();
		return this.load();
	}

	// Compute the stored map again in a job.
	async compute() {
		this.better.inert = true;
		try {
			await call(`${this.path}/map`, { method: "POST", signal: this.state.signal });
			await this.follow();
		} catch (error) {
			if (left(error)) return;
			if (error.answer?.job) await this.follow();
			else fill(this.work, failure(error, () => this.compute()));
		}
		this.better.inert = false;
	}

	follow() {
		return followWork("map", this.corpus.name, this.work, {
			failed: (error) => fill(this.work, failure(error)),
			signal: this.state.signal,
			ended: (job) => {
				if (job && job.state !== "succeeded") return;
				fill(this.work);
				if (!job) return this.follow();
				this.fitted = false;
				Object.assign(this.state.remembered, { zoom: 1, middle: null, chosen: [] });
				this.load();
			},
		});
	}

	controls() {
		const colour = (field) => {
			this.field = field;
			this.state.keep({ corpus: this.corpus.name, field: field || NONE }, { push: true });
			this.load();
		};
		const names = new Set([...this.fields.map(({ field }) => field), this.field].filter(Boolean));
		return [
			chooser(this.listed, this.corpus, ({ name }) => this.state.go({ corpus: name, field: null })),
			labelled("Colour by", select([["", "area"], ...names], this.field, colour)),
		];
	}

	tools() {
		const tool = (label, text, act) => button(text, act, { "aria-label": label, title: label });
		return div(
			"tools",
			choice("Dragging does", [[false, "Move"], [true, "Lasso"]], false, (lassoing) => Object.assign(this.plot, { lassoing })),
			tool("Zoom in", "+", () => this.plot.magnify(1.5)),
			tool("Zoom out", "−", () => this.plot.magnify(1 / 1.5)),
			tool("Show all", "All", () => this.plot.fit()),
			tool("List what is in view", "List", () => this.choose(this.plot.inView())),
		);
	}

	async load() {
		fill(this.failed, this.points ? null : loading("Projecting …"));
		this.plane.hidden = this.table.hidden = !this.points;
		const query = new URLSearchParams({ sample: POINTS, ...(this.field && { field: this.field }) });
		const request = { method: "GET", path: `${this.path}/map?${query}` };
		const { field } = this;
		try {
			const answer = await call(request.path, { signal: this.state.signal });
			const { points, passages, warnings = [] } = answer;
			if (field !== this.field) return; // the user has chosen another field
			fill(this.failed, points.length ? warnings.map((one) => el("p.warn.clip", one)) : noDocuments(this.corpus));
			this.tried.show(request);
			this.plane.hidden = this.table.hidden = !points.length;
			if (!points.length) return;
			this.areas = areas(points);
			const { groups, of } = field ? grouped(points.map(({ value }) => value)) : this.byArea();
			this.groups = groups;
			this.points = points.map((point, i) => ({ ...point, group: of(point.value, i) }));
			this.about.textContent = `${told(answer, passages)}${this.areas.length ? " An area has the words that distinguish it from the others." : ""}`;
			fill(this.better, this.offered(answer));
			this.name(this.areas);
			this.choose(new Set());
			this.paint();
			this.tabulate(0);
		} catch (error) {
			if (!left(error) && field === this.field) fill(this.failed, failure(error, () => this.load()));
		}
	}

	// Return a button if the server can compute a better map, else the reason why it can't.
	offered({ hint, stored }) {
		if (!hint) return null;
		if (!hint.startsWith("POST ")) return stored ? null : el("p.muted", `A clearer map: ${hint}`);
		return button(stored ? "Compute the map again" : "Compute a clearer map", () => this.compute(), { class: stored ? "" : "primary" });
	}

	byArea() {
		const of = new Map(this.areas.flatMap(({ members }, area) => members.map((i) => [i, area])));
		const groups = this.areas.map(({ name }, i) => hued(name || `area ${i + 1}`, i));
		return { groups: groups.length ? groups : [hued("", 0)], of: (_, i) => of.get(i) ?? 0 };
	}

	// The legend defines the colours in CSS, and the canvas reads them from the legend.
	paint() {
		if (!this.points) return;
		const swatches = this.groups.map(({ kind, style = {} }) => el(`span.swatch.${kind}`, { style }));
		const entries = this.groups.map(({ name }, group) => {
			const members = this.points.flatMap((point, i) => (point.group === group ? [i] : []));
			const shown = [swatches[group], el("span.clip", name), el("span.muted", count(members.length))];
			return el("li", button(shown, () => this.choose(new Set(members)), { class: "quiet" }));
		});
		fill(this.legend, entries);
		const keyed = Boolean(this.field || this.areas.length);
		this.legend.hidden = !keyed;
		this.plane.classList.toggle("keyed", keyed);
		const colours = swatches.map((swatch) => getComputedStyle(swatch).color);
		this.plot.show(this.points, colours, getComputedStyle(this.canvas).color);
		if (this.fitted) return;
		this.plot.resize();
		this.fitted = true;
		const { zoom, middle, chosen = [] } = this.state.remembered;
		this.plot.fit(zoom, middle);
		this.choose(new Set(chosen.filter((i) => i < this.points.length)));
	}

	// The areas whose labels are shown.
	name(named) {
		this.named = named;
		fill(this.labels, named.map(({ name }) => el("span", name.replaceAll(", ", "\n"))));
		if (this.fitted) this.label();
	}

	// After zooming in, the visible points get their own areas.
	rename() {
		if (this.plot.zoom > NEARER) this.name(areas([...this.plot.inView()].map((i) => this.points[i])));
		else if (this.named !== this.areas) this.name(this.areas);
	}

	// Put each label in the middle of its area, unless the label of a larger area is there.
	label() {
		const taken = [];
		[...this.labels.children].forEach((label, i) => {
			const [x, y] = this.plot.place(this.named[i]);
			label.style.translate = `calc(${x}px - 50%) calc(${y}px - 50%)`;
			const [right, down] = [label.offsetWidth / 2, label.offsetHeight / 2];
			const apart = taken.every((one) => Math.abs(one.x - x) > one.right + right || Math.abs(one.y - y) > one.down + down);
			label.classList.toggle("covered", !apart);
			if (apart) taken.push({ x, y, right, down });
		});
	}

	// Browsers limit the changes of the history per second.
	moved() {
		if (this.named && this.fitted) this.label();
		clearTimeout(this.timer);
		const { zoom, middle } = this.plot;
		this.timer = setTimeout(() => {
			this.state.remember({ zoom, middle });
			if (this.points) this.rename();
		}, NOTED_MS);
	}

	point(point, x, y) {
		this.tip.hidden = !point;
		if (!point) return;
		fill(this.tip, this.field && el("span.muted", `${this.field}: ${point.value ?? "none"}`), el("span", point.text));
		const beside = (at, size) => (at > size / 2 ? `auto ${size - at + 12}px` : `${at + 12}px auto`);
		this.tip.style.insetInline = beside(x, this.plot.width);
		this.tip.style.insetBlock = beside(y, this.plot.height);
	}

	choose(chosen) {
		this.plot.choose(chosen.size ? chosen : null);
		this.list.hidden = !chosen.size;
		this.state.remember({ chosen: chosen.size > REMEMBERED ? [] : [...chosen] });
		if (!chosen.size) return fill(this.list);
		const some = [...chosen].slice(0, LISTED).map((i) => this.points[i]);
		const more = chosen.size > some.length && `The first ${count(some.length)} are listed.`;
		const rows = some.map(({ id, text, value }) => {
			const like = el("a", { href: link("search", { corpus: this.corpus.name, like: id }), "aria-label": `More like this: ${id}` }, "More like this");
			return el("li", this.field && el("span.chip", String(value ?? "none")), el("span.clip", text), like);
		});
		const clear = button("Clear", () => this.choose(new Set()));
		fill(this.list, div("heading", el("h2", counted(chosen.size, "passage")), el("span.muted", more), clear), el("ol.passages", rows));
	}

	// The page of the table that begins there; `turned`, the button that led to it, keeps the focus, or the table has it.
	tabulate(start, turned = null) {
		const inside = this.table.lastElementChild;
		if (!this.table.open || !this.points) return fill(inside);
		const page = this.points.slice(start, start + LISTED);
		const columns = ["Document", "Text", this.field, "x", "y"].filter(Boolean);
		const told = ({ id, text, value, x, y }) => [id, text, ...(this.field ? [String(value ?? "")] : []), x.toFixed(3), y.toFixed(3)];
		const rows = page.map((point) => told(point).map((cell) => el("td.clip", cell)));
		const turn = (to, name) => button(name, () => this.tabulate(to, name), { disabled: to < 0 || to >= this.points.length });
		const place = `${count(start + 1)} to ${count(start + page.length)} of ${count(this.points.length)}`;
		const turns = [turn(start - LISTED, "Previous"), turn(start + LISTED, "Next")];
		fill(
			inside,
			div("row", turns, status(place)),
			scrolled("Points", table(columns.map((name) => el("th", { scope: "col" }, name)), rows)),
		);
		if (turned) (turns.find((one) => one.textContent === turned && !one.disabled) ?? inside.lastElementChild).focus();
	}
}

// Return a description of the map and its date.
function told({ points, projection, explained, stored }, passages) {
	const most = projection === "pca" ? passages : passages - stored.added;
	const all = points.length === most ? `All ${counted(most, "passage")}` : `A random ${count(points.length)} of ${counted(most, "passage")}`;
	if (projection === "pca") {
		const [across, up] = explained.map((share) => `${(100 * share).toFixed(1)} %`);
		return `${all}. The two axes (principal components) show ${across} and ${up} of the variance. Passages that are close here are not necessarily similar.`;
	}
	const { created, current, added, removed } = stored;
	const changes = [added && `${count(added)} added`, removed && `${count(removed)} removed`].filter(Boolean);
	const since = current ? "" : ` Since then, ${changes.length ? `${changes.join(" and ")}: new passages are not on the map` : "another encoder embedded the corpus"}.`;
	return `${all}, as they were on ${date(created)}. Passages that resemble each other are close together (t-SNE); the axes mean nothing.${since}`;
}
