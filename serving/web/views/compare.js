// Comparison of sentences with each other.

import { call } from "../api.js";
import { button, card, choice, div, labelled, scrolled, status, touched } from "../controls.js";
import { el, fill } from "../dom.js";
import { copied, tryIt } from "../snippets.js";
import { empty, failure, left, loading } from "../states.js";

const PAUSE_MS = 300; // pause after a key before a comparison
const SLOW_MS = 300; // a longer comparison shows that it is running
const SHOWN = 100; // maximum rows and columns of the heat map
const NEAREST = 10; // nearest pairs shown
const LONGEST = 4000; // maximum characters in an address
const EXAMPLES = [
	"A man is playing the guitar on stage.",
	"Someone performs a song for an audience.",
	"The recipe needs two eggs and some butter.",
	"Whisk the butter and eggs together.",
	"Interest rates rose again in March.",
	"The central bank made borrowing more expensive.",
].join("\n");

export async function show(place, state) {
	return new Compare(place, state).start();
}

// Return the matrix as CSV for other programs (RFC 4180).
const csv = (rows, columns, matrix) =>
	[["", ...columns], ...rows.map((text, i) => [text, ...matrix[i].map((cosine) => cosine.toFixed(6))])]
		.map((line) => line.map((cell) => (/[",\n\r]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(","))
		.join("\r\n");

// Return the pairs with the greatest cosines, best first. Within one list, each pair occurs once.
function nearest(matrix, two) {
	const found = [];
	matrix.forEach((line, i) => {
		for (let j = two ? 0 : i + 1; j < line.length; j++) {
			if (line[j] <= found[NEAREST - 1]?.cosine) continue;
			found.push({ i, j, cosine: line[j] });
			found.sort((one, other) => other.cosine - one.cosine).splice(NEAREST);
		}
	});
	return found;
}

const sentences = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const number = (cosine) => cosine.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "−");

class Compare {
	constructor(place, state) {
		this.place = place;
		this.state = state;
		this.asked = new AbortController(); // aborted by the next comparison
		this.two = state.remembered.two ?? state.address.has("b");
	}

	start() {
		const { address, remembered, signal } = this.state;
		this.first = this.list(remembered.a ?? address.get("a") ?? EXAMPLES);
		this.second = this.list(remembered.b ?? address.get("b") ?? "");
		this.firstField = labelled("", this.first);
		this.secondField = labelled("List B, one sentence a line", this.second);
		this.note = status();
		this.result = div("result");
		this.tried = tryIt();
		const lists = choice("Compare", [[false, "One list"], [true, "Two lists"]], this.two, (two) => this.choose(two));
		fill(this.place, div("columns", div("lists", lists, this.firstField, this.secondField, this.note), this.result), this.tried.element);
		signal.addEventListener("abort", () => this.leave());
		this.arrange();
		return this.compare();
	}

	list(text) {
		return el("textarea", { rows: "8", spellcheck: "false", value: text, oninput: () => this.typed() });
	}

	leave() {
		clearTimeout(this.timer);
		this.asked.abort();
	}

	typed() {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => this.compare(), PAUSE_MS);
	}

	choose(two) {
		this.two = two;
		this.arrange();
		if (two && !this.second.value.trim()) this.second.focus();
		this.compare();
	}

	arrange() {
		this.firstField.firstChild.textContent = this.two ? "List A, one sentence a line" : "Sentences, one a line";
		this.secondField.hidden = !this.two;
	}

	keep() {
		const a = this.first.value === EXAMPLES ? "" : this.first.value;
		const b = this.two ? this.second.value : "";
		const fits = a.length + b.length <= LONGEST;
		this.note.textContent = fits ? "" : "Too much text for a link: the address does not carry it.";
		this.state.remember({ a: this.first.value, b: this.second.value, two: this.two });
		this.state.keep(fits ? { a, b } : { a: "", b: "" });
	}

	async compare() {
		this.leave();
		this.asked = new AbortController();
		const { signal } = this.asked;
		this.keep();
		const rows = sentences(this.first.value);
		const columns = this.two ? sentences(this.second.value) : rows;
		if (this.two ? !rows.length || !columns.length : rows.length < 2) {
			const what = this.two ? "Write at least one sentence into each list." : "Write at least two sentences, each on a line of its own.";
			return fill(this.result, empty("Nothing to compare yet", what));
		}
		const slow = setTimeout(() => fill(this.result, loading("Comparing …")), this.result.firstChild ? SLOW_MS : 0);
		try {
			const request = { method: "POST", path: "similarity", body: { inputs: { sentences_a: rows, sentences_b: columns } } };
			const matrix = await call(request.path, { body: request.body, signal });
			clearTimeout(slow);
			fill(this.result, this.heat(rows, columns, matrix), this.pairs(rows, columns, nearest(matrix, this.two)));
			this.tried.show(request);
		} catch (error) {
			if (!left(error)) fill(this.result, failure(error, () => this.compare()));
		} finally {
			clearTimeout(slow);
		}
	}

	heat(rows, columns, matrix) {
		const [one, other] = this.two ? ["A", "B"] : ["", ""];
		const heads = columns.slice(0, SHOWN).map((text, j) => el("th", { scope: "col", title: text }, `${other}${j + 1}`));
		const lines = rows.slice(0, SHOWN).map((text, i) =>
			el(
				"tr",
				el("th", { scope: "row", title: text }, el("span.place", `${one}${i + 1}`), el("span.sentence", " ", text)),
				matrix[i].slice(0, SHOWN).map((cosine) => el("td", { style: { "--heat": `${Math.round(100 * Math.max(0, cosine))}%` } }, number(cosine))),
			),
		);
		const told = el("p.muted.told.clip", `${touched ? "Tap" : "Point at"} a number to read its two sentences.`);
		const tell = (event) => {
			const cell = event.target.closest("tbody td");
			if (!cell) return;
			const [i, j] = [cell.parentElement.rowIndex - 1, cell.cellIndex - 1];
			fill(told, el("strong", number(matrix[i][j])), ` ${one}${i + 1} ${rows[i]} · ${other}${j + 1} ${columns[j]}`);
		};
		const table = el("table.heat", { onmouseover: tell, onclick: tell }, el("thead", el("tr", el("td"), heads)), el("tbody", lines));
		const scale = el("span.scale.muted", "0", el("span.ramp"), "1");
		const cut = Math.max(rows.length, columns.length) > SHOWN;
		return div(
			"card",
			div("heading", el("h2", "Cosine similarity"), scale, copier(() => csv(rows, columns, matrix))),
			scrolled("Similarity matrix", table),
			cut && el("p.muted", `The first ${SHOWN} rows and columns are shown; the CSV and the nearest pairs have all.`),
			told,
		);
	}

	pairs(rows, columns, found) {
		const lines = found.map(({ i, j, cosine }) =>
			el(
				"li",
				el("span.cosine", number(cosine)),
				el("span.bar-of", el("span", { style: { width: `${100 * Math.max(0, cosine)}%` } })),
				el("span.clip", rows[i]),
				el("span.clip", columns[j]),
			),
		);
		return card("Nearest pairs", el("ol.pairs", lines));
	}
}

function copier(written) {
	const said = status();
	const byHand = el("textarea.mono", { hidden: true, rows: "6", readonly: true, "aria-label": "CSV" });
	const copy = async () => {
		const text = written();
		byHand.hidden = await copied(text);
		fill(said, byHand.hidden ? "Copied." : "Copy the selected text.");
		byHand.value = text;
		byHand.select();
	};
	return div("actions", said, button("Copy as CSV", copy), byHand);
}
