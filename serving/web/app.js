// The frame of the page. It shows the view that the address names.

import { ApiError, call } from "./api.js";
import { el, fill } from "./dom.js";
import { changeKey, forgetRefusal, keysMatter } from "./key.js";
import { failure, left, loading } from "./states.js";

// Each view is a module views/<name>.js that exports `show(place, state)`.
const VIEWS = {
	search: "Search",
	corpora: "Corpora",
	compare: "Compare",
	map: "Map",
	encoder: "Encoder",
};
const RELOAD_MS = 1000;

const main = document.getElementById("main");
const tabs = document.getElementById("views");
const encoder = document.getElementById("encoder");
const key = document.getElementById("key");
let leaving = new AbortController();
export let served; // the answer of /info

// State from which a view builds itself.
class State {
	constructor(address, signal, remembered) {
		this.address = address; // URLSearchParams
		this.signal = signal; // aborted when the user leaves the view
		this.remembered = remembered; // last argument of remember() for this entry of the history
	}

	// Store a value as JSON in the history. Back, forward and reload restore it, but links do not contain it.
	remember(changes) {
		if (!this.signal.aborted) remember(changes);
	}

	// Put these changes into the address. With `push`, the back button leads to the previous address.
	keep(changes, { push = false } = {}) {
		if (this.signal.aborted) return;
		const before = query(this.address);
		const now = query(put(this.address, changes));
		if (now === before) return;
		if (push) enter(now);
		else history.replaceState(history.state, "", now);
		if ("corpus" in changes) mark(this.address);
	}

	go(changes) {
		this.keep(changes, { push: true });
		return show({ moved: true });
	}
}

const remember = (changes) => history.replaceState({ ...history.state, ...changes }, "");
const scrolled = () => remember({ scroll: scrollY });

function enter(address) {
	scrolled();
	history.pushState(null, "", address);
}

const query = (address) => `?${address}`;

// Each value of a list becomes a separate parameter. "", null and an empty list remove the name from the address.
function put(address, changes) {
	for (const [name, value] of Object.entries(changes)) {
		const [first, ...others] = [value].flat().filter((one) => (one ?? "") !== "");
		if (first === undefined) address.delete(name);
		else address.set(name, first);
		others.forEach((one) => address.append(name, one));
	}
	return address;
}

// Return the address of a view, as in link("search", { corpus: "notes" }).
export const link = (view, address = {}) => query(put(new URLSearchParams({ view }), address));

export const changed = (address, changes) => query(put(new URLSearchParams(address), changes));

const failedImports = new Set(); // some browsers keep the failure of an import until the page is reloaded

async function show({ moved = false } = {}) {
	const remembered = history.state ?? {}; // read this before the page scrolls
	leaving.abort();
	leaving = new AbortController();
	const { signal } = leaving;
	const address = new URLSearchParams(location.search);
	const name = Object.hasOwn(VIEWS, address.get("view") ?? "") ? address.get("view") : Object.keys(VIEWS)[0];
	address.set("view", name);
	forgetRefusal();
	mark(address);
	fill(main, loading()); // replace the old view, so that the user can't type into it
	try {
		const loaded = import(`./views/${name}.js`);
		const failedBefore = failedImports.has(name);
		loaded.catch(() => failedImports.add(name)); // if both fail, ready() throws the better message
		await ready(signal);
		if (failedBefore) return location.reload();
		const view = await loaded;
		signal.throwIfAborted();
		const place = el(`div.view.${name}`);
		const heading = el("h1", { tabindex: "-1" }, VIEWS[name]);
		document.title = `${VIEWS[name]} · Isosphere`;
		fill(main, heading, place);
		if (moved) {
			window.scrollTo(0, 0);
			heading.focus({ preventScroll: true });
		}
		await view.show(place, new State(address, signal, remembered));
		if (!signal.aborted && !scrollY) window.scrollTo(0, remembered.scroll ?? 0);
	} catch (error) {
		if (left(error) || signal.aborted) return;
		fill(main, failure(error, () => (error instanceof ApiError ? show() : location.reload())));
	}
}

// Wait until the server is ready. Until then, the page shows its state.
async function ready(signal) {
	served = await call("info", { signal });
	encoder.textContent = `${served.served_model_name} · ${served.dim} dimensions`;
	let { state } = served;
	while (state === "loading") {
		try {
			({ state } = await call("readyz", { signal }));
		} catch (error) {
			if (error.status !== 503 || error.answer?.state === "failed") throw error;
			fill(main, loading(`The server is ${error.answer?.error ?? "loading"} …`));
			await new Promise((resolve) => setTimeout(resolve, RELOAD_MS));
			signal.throwIfAborted();
		}
	}
}

// The tabs keep the current corpus.
function mark(address) {
	const kept = address.get("corpus") ? { corpus: address.get("corpus") } : {};
	fill(
		tabs,
		Object.entries(VIEWS).map(([name, title]) =>
			el("li", el("a", { href: link(name, kept), "aria-current": name === address.get("view") ? "page" : null }, title)),
		),
	);
}

function showKey() {
	key.hidden = !keysMatter();
	document.getElementById("info").hidden = keysMatter(); // a link can't send a key
}

document.addEventListener("click", (event) => {
	const href = event.target.closest?.("a")?.getAttribute("href");
	if (href === "#main") {
		event.preventDefault(); // the address must stay the same
		main.focus();
	}
	if (!href?.startsWith("?") || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
	event.preventDefault();
	enter(href);
	show({ moved: true });
});
history.scrollRestoration = "manual"; // the view restores the position, because its content loads late
window.addEventListener("scrollend", scrolled);
window.addEventListener("popstate", () => show({ moved: true }));
document.addEventListener("keychange", showKey);
key.addEventListener("click", async () => {
	if (await changeKey()) show();
});
showKey();
show();
