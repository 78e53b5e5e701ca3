// Where we are: `#/queues/%2F/orders?page=2`. Each segment is percent-encoded.

export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const names = path.split("/").filter((part) => part !== "").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { names, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

// A link to a page: link("queues", "/", "orders"). An object at the end is the query.
export function link(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const path = parts.map(encodeURIComponent).join("/");
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export function go(...parts) {
  location.hash = link(...parts);
}

// Remember a query in the address without leaving the page.
export function keep(query) {
  const { names } = parse(location.hash);
  history.replaceState(null, "", link(...names, query));
}
