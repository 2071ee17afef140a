// Compiled against the types that openapi-typescript makes of our document. Each @ts-expect-error
// is a request that the types must not permit: tsc fails where there is no error.
import type { components, paths } from "./api";

type Schemas = components["schemas"];
type Created = paths["/v1/intents"]["post"]["responses"][201]["content"]["application/json"];
type Query = paths["/v1/intents"]["get"]["parameters"]["query"];

const payload: Schemas["IntentRequest"] = { target: "sms", payload: { to: "+41", amount: 1.1 } };
const body: Schemas["IntentRequest"] = {
  target: "sms",
  body: "AP8=",
  content_type: "image/png",
  idempotency_key: "k",
  metadata: { order: 4711 },
  due_at: null,
};
// @ts-expect-error neither a payload nor a body
const neither: Schemas["IntentRequest"] = { target: "sms" };
// @ts-expect-error both
const both: Schemas["IntentRequest"] = { target: "sms", payload: 1, body: "", content_type: "a/b" };
// @ts-expect-error a body without its type
const untyped: Schemas["IntentRequest"] = { target: "sms", body: "" };
// @ts-expect-error an unknown member
const unknown: Schemas["IntentRequest"] = { target: "sms", payload: 1, colour: "red" };

const batch: Schemas["BatchRequest"] = { intents: [payload, body] };
const cancel: Schemas["NoteRequest"] = { note: "a mistake" };
const resolve: Schemas["ResolveRequest"] = { resolution: "retry", note: "not there" };
const redrive: Schemas["RedriveRequest"] = { target: "sms", status: "rejected", note: "again" };
// @ts-expect-error an accepted intent is not redriven
const wrong: Schemas["RedriveRequest"] = { target: "sms", status: "accepted", note: "again" };
const pause: Schemas["PauseRequest"] = { target: "pay", stream: "a/b", note: "audit", seconds: 60 };
// @ts-expect-error the intent that was seen at the head is missing
const skip: Schemas["SkipRequest"] = { target: "pay", stream: "a/b", note: "poison" };

const page: Query = { limit: 10 };

export function summary(accepted: Created, content: Schemas["Content"], problem: Schemas["ProblemDocument"]) {
  // @ts-expect-error the metadata may be null
  const order = content.metadata["order"];
  const messages = (problem.problems ?? []).map((one) => `${one.place}: ${one.message}`);
  return [accepted.intent_id, accepted.intent?.status, content.metadata?.["order"], order, ...messages];
}

export const requests = [
  payload, body, neither, both, untyped, unknown, batch, cancel, resolve, redrive, wrong, pause, skip, page,
];
