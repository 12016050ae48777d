// Messages of a place without content: loading, empty or failed.

import { button, div } from "./controls.js";
import { el } from "./dom.js";

export const loading = (text = "Loading …") => el("p.state", { role: "status" }, el("span.spinner"), text);

// empty("Nothing to search yet", "Add a file, then search it.", el("a", …))
export const empty = (title, text, ...actions) =>
	div("state", el("h2", title), el("p", text), div("actions", actions));

// `again` is called when the user wants to try again.
export const failure = (error, again) =>
	el(
		"div.state.wrong",
		{ role: "alert" },
		el("p", error.message),
		again && div("actions", button("Try again", again)),
	);

// Return whether an error only means that the request was aborted.
export const left = (error) => error.name === "AbortError";
