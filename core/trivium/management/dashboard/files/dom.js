// Makes elements. Whatever comes from the broker becomes text or the value of an attribute, never
// markup: there is no other way to put anything on a page.

const SVG = "http://www.w3.org/2000/svg";

// An element of HTML: h("a", { href: "#/queues", class: "x", onclick: open }, "text", child, ...).
// What is null, undefined or false is left out. "style" is an object of properties.
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// The same of SVG.
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) set(element, name, value);
  append(element, children);
  return element;
}

export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    element.removeAttribute(name);
  } else if (typeof value === "function") {
    element.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    for (const [property, one] of Object.entries(value)) element.style.setProperty(property, one);
  } else if (name === "value" && "value" in element) {
    element.value = value;
  } else if (/^on|^srcdoc$/i.test(name)) {
    throw new TypeError(`${name} is no text`);
  } else if (name === "href" && !/^(#|data:text\/plain|blob:|api\/)/.test(value)) {
    // No "javascript:", and no other site.
    throw new TypeError("a link leads to a page of ours");
  } else {
    element.setAttribute(name, value === true ? "" : value);
  }
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

// What can have the focus within an element.
const stops = (element) => [...element.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]")];

// Have an element these children and no others. Whoever is in it by keyboard stays at what is called
// the same, or else at the same place.
export function replace(element, ...children) {
  const active = document.activeElement;
  const place = element !== document.body && element !== active && element.contains(active) ? stops(element).indexOf(active) : -1;
  element.replaceChildren();
  append(element, children);
  if (place >= 0) {
    const found = stops(element);
    const alike = (each) => each?.tagName === active.tagName && each.textContent === active.textContent;
    (alike(found[place]) ? found[place] : found.find(alike) ?? found[Math.min(place, found.length - 1)])?.focus({ preventScroll: true });
  }
  return element;
}

// Put something into a place only where it is new, so that who reads it is not disturbed.
export function whenChanged(place, make) {
  let before = "";
  return (...values) => {
    const now = JSON.stringify(values);
    if (now !== before) replace(place, make(...values));
    before = now;
  };
}

// Say something to whoever cannot see the page.
export function announce(text) {
  let place = document.getElementById("announcements");
  if (!place) {
    place = h("div", { id: "announcements", class: "unseen", role: "status", "aria-live": "polite" });
    document.body.append(place);
  }
  place.textContent = text;
}
