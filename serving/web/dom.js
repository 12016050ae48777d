// Creation of elements. The page creates elements only here, and never parses text as HTML.

const SVG = "http://www.w3.org/2000/svg";

// el("a.link.wide", { href: "?view=map", onclick: f, style: { width: "3em" }, disabled: false }, "text", [more]): the tag with its
// classes; attributes, which may be left out; children. A function is a listener; a style is an object; true is an attribute
// without a value; false, null and undefined are none.
export const el = (tag, ...given) => made((name) => document.createElement(name), tag, given);

export const svg = (tag, ...given) => made((name) => document.createElementNS(SVG, name), tag, given);

export function fill(element, ...children) {
	element.replaceChildren(...children.flat(Infinity).filter((child) => child === 0 || child));
	return element;
}

function made(create, tag, given) {
	const [name, ...classes] = tag.split(".");
	const element = create(name);
	const attributes = given[0] && Object.getPrototypeOf(given[0]) === Object.prototype ? given.shift() : {};
	if (classes.length) element.setAttribute("class", classes.join(" "));
	fill(element, given);
	for (const [key, value] of Object.entries(attributes)) give(element, key, value);
	return element;
}

function give(element, name, value) {
	if (typeof value === "function") element.addEventListener(name.slice("on".length), value);
	else if (name === "style") Object.entries(value).forEach(([property, given]) => element.style.setProperty(property, given));
	else if (name === "value") element.value = value; // set this after the options of a select exist
	else if (value === true) element.setAttribute(name, "");
	else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
}
