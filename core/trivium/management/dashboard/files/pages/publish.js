// Publishing by any road: to an exchange, to a topic as MQTT clients do, to a stream.

import { at, post } from "../api.js";
import { InputError, field, parsed } from "../dialogs.js";
import { announce, h, replace } from "../dom.js";
import * as format from "../format.js";
import { choice, names } from "../parts.js";
import { state } from "../state.js";

const MODES = ["at-least-once", "at-most-once", "exactly-once"];
const text = (name, value, more) => h("input", { name, value, maxlength: "255", autocomplete: "off", spellcheck: "false", ...more });
const number = (name, most) => h("input", { name, type: "number", min: "0", max: most });
const table = (name) => h("textarea", { name, rows: "3", spellcheck: "false" });

// What is left out of a request where nothing was typed.
const given = (data, ...fields) => Object.fromEntries(fields.filter((each) => data.get(each)).map((each) => [each, data.get(each)]));
const numbers = (data, ...fields) => Object.fromEntries(fields.filter((each) => data.get(each)).map((each) => [each, Number(data.get(each))]));

const usual = () => [
  field("Delivery mode", choice("mode", MODES, MODES[0])),
  field("Content type", text("content_type", "", { placeholder: "text/plain" })),
  field("Message id", text("message_id")), field("Correlation id", text("correlation_id")), field("Reply to", text("reply_to"), "A queue"),
  field("Expires after", number("expiration_ms"), "Milliseconds"), field("Delayed by", number("delay_ms"), "Milliseconds"),
  field("Headers", table("headers"), 'A JSON object, such as {"x-retry": 1}'),
];

const sent = (data) => ({ mode: data.get("mode"), headers: parsed(data.get("headers"), "Headers"),
  ...given(data, "content_type", "message_id", "correlation_id", "reply_to"), ...numbers(data, "expiration_ms", "delay_ms", "priority") });

// Each road: the fields that it has, and what is asked of the broker.
const roads = {
  exchange: {
    title: "To an exchange (AMQP)",
    fields(query, vhost) {
      const exchange = text("exchange", query.exchange, { placeholder: "the default exchange" });
      return [field("Exchange", exchange), names(exchange, () => at`vhosts/${vhost()}/exchanges`),
        field("Routing key", text("key", query.key), "Of the default exchange: the name of a queue"), ...usual(), field("Priority", number("priority", 255))];
    },
    send: (vhost, data, payload) => post(at`vhosts/${vhost}/exchanges/${data.get("exchange") || "amq.default"}/messages`,
      { messages: [{ key: data.get("key"), ...payload, ...sent(data) }] }),
  },
  topic: {
    title: "To a topic (MQTT)",
    fields: (query) => [
      field("Topic", text("topic", query.topic, { required: true, maxlength: "65535" })),
      field("QoS", choice("qos", ["0", "1", "2"], "1", { 0: "0: at most once", 1: "1: at least once", 2: "2: exactly once" })),
      field("Retain", choice("retain", ["", "yes"], query.retain ?? "", { "": "no", yes: "yes: keep it for the topic" }), "An empty message clears what is kept"),
      field("Content type", text("content_type")), field("Expires after", number("expiry_seconds"), "Seconds"),
      field("Response topic", text("response_topic")), field("Correlation data", text("correlation_data")),
      field("User properties", table("user_properties"), "One in a line, as name: value"),
    ],
    send: (vhost, data, payload) => post(at`vhosts/${vhost}/topics/messages`, { ...payload, topic: data.get("topic"), qos: Number(data.get("qos")),
      retain: data.get("retain") === "yes", user_properties: pairs(data.get("user_properties")),
      ...given(data, "content_type", "response_topic", "correlation_data"), ...numbers(data, "expiry_seconds") }),
  },
  stream: {
    title: "To a stream",
    fields(query, vhost) {
      const stream = text("stream", query.stream, { required: true });
      return [field("Stream", stream), names(stream, () => at`vhosts/${vhost()}/streams`),
        field("Key", text("partition_key"), "What has the same key is in the same partition"), ...usual()];
    },
    send(vhost, data, payload) {
      const message = sent(data);
      if (data.get("partition_key")) message.headers["x-key"] = data.get("partition_key");
      return post(at`vhosts/${vhost}/exchanges/amq.default/messages`, { messages: [{ key: data.get("stream"), ...payload, ...message }] });
    },
  },
};

function pairs(lines) {
  return lines.split("\n").filter((each) => each.trim()).map((each) => {
    const at = each.indexOf(":");
    if (at < 1) throw new InputError("User properties: a line is name: value");
    return [each.slice(0, at).trim(), each.slice(at + 1).trim()];
  });
}

const payloads = {
  Text: (typed) => ({ payload: typed }),
  // As it was typed: numbers of any size stay what they are.
  JSON(typed) {
    try {
      JSON.parse(typed);
    } catch (error) {
      throw new InputError(`Payload: ${error.message}`);
    }
    return { payload: typed, content_type: "application/json" };
  },
  Base64: (typed) => ({ payload_base64: typed.replace(/\s+/g, "") }),
};

const outcomes = {
  accepted: ["good", "accepted"],
  unroutable: ["bad", "led nowhere: nothing is bound or has subscribed there"],
  unretained: ["bad", "published, but not retained: the virtual host has no room for it"],
  rejected: ["bad", "rejected: there is no room"],
};

export default {
  path: "publish",
  title: "Publish",
  group: "Messages",
  show(view) {
    const { query } = view;
    const road = choice("road", Object.keys(roads), query.road, Object.fromEntries(Object.entries(roads).map(([name, each]) => [name, each.title])));
    const vhost = choice("vhost", state.vhosts, query.vhost || view.vhost || "/");
    const kind = choice("kind", Object.keys(payloads), "Text");
    const payload = h("textarea", { name: "payload", rows: "8", spellcheck: "false" });
    const rest = h("div", { class: "grid" });
    const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    const log = h("ol", { class: "outcomes", reversed: true });
    const button = h("button", { type: "submit", class: "main" }, "Publish");
    const fill = () => {
      trouble.hidden = true;
      replace(rest, roads[road.value].fields(query, () => vhost.value));
    };
    road.addEventListener("change", fill);
    fill();

    const send = async (event) => {
      event.preventDefault();
      button.disabled = true;
      trouble.hidden = true;
      try {
        const data = new FormData(form);
        const found = await roads[road.value].send(vhost.value, data, payloads[kind.value](payload.value));
        const [mark, said] = outcomes[found.outcomes[0]];
        log.prepend(h("li", { class: mark }, `${format.hour(Date.now())}: ${said}`));
        announce(said);
        while (log.children.length > 10) log.lastChild.remove();
      } catch (error) {
        if (error.name !== "Problem" && error.name !== "InputError") throw error;
        trouble.textContent = error.message;
        trouble.hidden = false;
      } finally {
        button.disabled = false;
      }
    };
    const form = h("form", { class: "card", onsubmit: send },
      h("div", { class: "grid" }, field("Road", road), field("Virtual host", vhost)), rest,
      field("Payload as", kind), field("Payload", payload), trouble, h("div", { class: "buttons" }, button));
    replace(view.element, h("h1", {}, "Publish"), form, h("section", { class: "part", "aria-label": "Outcomes" }, log));
  },
};
