// Elements. Nothing else in the page makes any, and text is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// el("a", { class: "link", href: "?view=map", onclick: f, style: { width: "3em" }, disabled: false }, "text", [more])
// A function is a listener; a style is an object; true is an attribute without a value; false, null and undefined are none.
export const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

export function fill(element, ...children) {
	element.replaceChildren(...children.flat(Infinity).filter((child) => child ?? false));
	return element;
}

function filled(element, attributes, children) {
	fill(element, children.map((child) => (typeof child === "number" ? String(child) : child)));
	for (const [name, value] of Object.entries(attributes ?? {})) give(element, name, value);
	return element;
}

function give(element, name, value) {
	if (typeof value === "function") element.addEventListener(name.slice("on".length), value);
	else if (name === "style") Object.entries(value).forEach(([property, given]) => element.style.setProperty(property, given));
	else if (name === "value") element.value = value; // after the options of a select
	else if (value === true) element.setAttribute(name, "");
	else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
}
