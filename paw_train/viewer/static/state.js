// The address holds everything that is shown: #/RUN/TAB?filters. Back, forward and links just work.

export const TABS = ["curves", "groups", "episodes", "turns"];
export const FILTERS = ["q", "phase", "outcome", "type", "invalid", "selected", "entropy", "u"];

export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decode);
  const params = Object.fromEntries(new URLSearchParams(query || ""));
  const tab = TABS.includes(parts[1]) ? parts[1] : "curves";
  return { run: parts[0] || null, tab, params };
}

export function format({ run, tab, params }) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {}))
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  const text = query.toString();
  const path = run ? `#/${encodeURIComponent(run)}/${tab || "curves"}` : "#/";
  return text ? `${path}?${text}` : path;
}

export const current = () => parse(location.hash);

// Changes part of the address. Moving along a list replaces it, so that "back" leaves the list.
export function go(change, { replace = false } = {}) {
  const now = current();
  const next = { ...now, ...change, params: { ...now.params, ...(change.params || {}) } };
  const hash = format(next);
  if (hash === (location.hash || "#/")) return;
  if (replace) {
    history.replaceState(null, "", hash);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}

export function range(params) {
  const found = /^(\d+)-(\d+)$/.exec(params.u || "");
  return found ? [Number(found[1]), Number(found[2])] : null;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
