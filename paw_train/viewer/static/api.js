// Questions to the server that this page came from.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function ask(name, params = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") query.append(key, one);
  const answer = await fetch(`/api/${name}?${query}`, { signal, credentials: "same-origin" });
  const body = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body.detail || answer.statusText);
  return body;
}

export function filters(params) {
  const found = /^(\d+)-(\d+)$/.exec(params.u || "");
  return {
    q: params.q, phase: params.phase, outcome: params.outcome, env: params.env, type: params.type,
    invalid: params.invalid && "true", selected: params.selected && "true",
    entropy: Number(params.entropy) >= 0 ? params.entropy : null, sort: params.sort,
    first: found ? found[1] : null, last: found ? found[2] : null,
  };
}
