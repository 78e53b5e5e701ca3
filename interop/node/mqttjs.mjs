// MQTT.js against a broker: one scenario by name, its result as one line of JSON.
import crypto from 'node:crypto';

import mqtt from 'mqtt';

// The broker by its port, or by a URL.
const [place, scenario, version, name] = process.argv.slice(2);
const common = { protocolVersion: Number(version), reconnectPeriod: 0 };

const scheme = process.env.OVER_TLS ? 'mqtts' : 'mqtt';
const url = place.includes(':') ? place : `${scheme}://127.0.0.1:${place}`;

const open = (options = {}) =>
  mqtt.connectAsync(url, { ...common, ...options });

// A client's messages as an async queue.
function inbox(client) {
  const ready = [];
  const waiting = [];
  client.on('message', (topic, payload, packet) => {
    const message = { topic, payload: payload.toString('hex'), packet };
    const waiter = waiting.shift();
    if (waiter) waiter(message);
    else ready.push(message);
  });
  return () =>
    ready.length ? Promise.resolve(ready.shift()) : new Promise((r) => waiting.push(r));
}

// SCRAM-SHA-256 by Node's own cryptography (RFC 5802, 3).
function scram(user, password) {
  const hmac = (key, data) => crypto.createHmac('sha256', key).update(data).digest();
  const bare = `n=${user},r=${crypto.randomBytes(18).toString('base64')}`;
  let expected = '';
  return {
    first: Buffer.from(`n,,${bare}`),
    last(challenge) {
      const server = challenge.toString();
      const [, nonce, salt, count] = /^r=(.*),s=(.*),i=(.*)$/.exec(server);
      const salted = crypto.pbkdf2Sync(
        password,
        Buffer.from(salt, 'base64'),
        Number(count),
        32,
        'sha256',
      );
      const clientKey = hmac(salted, 'Client Key');
      const without = `c=biws,r=${nonce}`;
      const signed = `${bare},${server},${without}`;
      const stored = crypto.createHash('sha256').update(clientKey).digest();
      const signature = hmac(stored, signed);
      const proof = clientKey.map((byte, at) => byte ^ signature[at]);
      expected = `v=${hmac(hmac(salted, 'Server Key'), signed).toString('base64')}`;
      return Buffer.from(`${without},p=${proof.toString('base64')}`);
    },
    isRight: (data) => data?.toString() === expected,
  };
}

const auth = (reasonCode, authenticationMethod, authenticationData) => ({
  cmd: 'auth',
  reasonCode,
  properties: { authenticationMethod, authenticationData },
});

const scenarios = {
  // `name` is user:password; twice, the second time by re-authentication.
  async scram() {
    const method = 'SCRAM-SHA-256';
    const [user, password] = name.split(':');
    let exchange = scram(user, password);
    const properties = { authenticationMethod: method, authenticationData: exchange.first };
    const client = mqtt.connect(url, { ...common, clientId: 'scram', properties });
    const done = new Promise((resolve) => {
      client.handleAuth = (packet, callback) => {
        const data = packet.properties.authenticationData;
        if (packet.reasonCode === 0) {
          resolve(exchange.isRight(data));
          callback();
        } else callback(null, auth(0x18, method, exchange.last(data)));
      };
    });
    const outcome = await new Promise((resolve) => {
      client.once('connect', (connack) =>
        resolve(exchange.isRight(connack.properties.authenticationData)),
      );
      client.once('error', (error) => resolve(error.code));
    });
    if (outcome !== true) return outcome;
    await client.subscribeAsync('renewed', { qos: 1 });
    exchange = scram(user, password);
    client._sendPacket(auth(0x19, method, exchange.first));
    const renewed = await done;
    const next = inbox(client);
    await client.publishAsync('renewed', 'x', { qos: 1 });
    await next();
    await client.endAsync();
    return renewed;
  },

  // `name` is two tokens.
  async renewal() {
    const method = 'OAUTH2-JWT';
    const [first, second] = name.split(' ').map((token) => Buffer.from(token));
    const properties = { authenticationMethod: method, authenticationData: first };
    const client = await open({ properties });
    const done = new Promise((resolve) => {
      client.handleAuth = (packet, callback) => {
        resolve(packet.reasonCode);
        callback();
      };
      client.once('disconnect', (packet) => resolve(packet.reasonCode));
    });
    client._sendPacket(auth(0x19, method, second));
    const outcome = await done;
    if (outcome === 0) await client.endAsync();
    return outcome;
  },

  async matrix() {
    const found = [];
    const client = await open();
    const next = inbox(client);
    for (const subscribed of [0, 1, 2]) {
      await client.subscribeAsync(`${name}/${subscribed}/#`, { qos: subscribed });
      for (const published of [0, 1, 2]) {
        await client.publishAsync(`${name}/${subscribed}/é/${published}`, Buffer.from([0, 255]), {
          qos: published,
        });
        const { topic, payload, packet } = await next();
        found.push([topic.slice(name.length), payload, packet.qos]);
      }
    }
    await client.endAsync();
    return found;
  },

  async session() {
    const options = { clientId: name, clean: false, properties: { sessionExpiryInterval: 60 } };
    const first = await open(options);
    await first.subscribeAsync(`${name}/#`, { qos: 2 });
    await first.endAsync();
    const publisher = await open();
    for (let i = 0; i < 20; i += 1) {
      await publisher.publishAsync(`${name}/${i}`, `${i}`, { qos: 1 });
    }
    await publisher.endAsync();
    // The messages may come with the CONNACK, so the handler is there first.
    const again = mqtt.connect(url, { ...common, ...options });
    const next = inbox(again);
    const connack = await new Promise((resolve) => again.once('connect', resolve));
    const found = [];
    for (let i = 0; i < 20; i += 1) found.push((await next()).topic.slice(name.length + 1));
    await again.endAsync();
    return { present: connack.sessionPresent, found };
  },

  async retained() {
    const client = await open();
    const next = inbox(client);
    await client.publishAsync(`${name}/r`, 'kept', { qos: 1, retain: true });
    await client.subscribeAsync(`${name}/+`, { qos: 1 });
    const { payload, packet } = await next();
    await client.publishAsync(`${name}/r`, '', { qos: 1, retain: true });
    await client.endAsync();
    return { payload, retain: packet.retain };
  },

  async will() {
    const watcher = await open();
    const next = inbox(watcher);
    await watcher.subscribeAsync(name, { qos: 1 });
    const mortal = await open({ will: { topic: name, payload: 'gone', qos: 1 } });
    mortal.stream.destroy();
    const { payload } = await next();
    await watcher.endAsync();
    return payload;
  },

  async properties() {
    const client = await open();
    const next = inbox(client);
    await client.subscribeAsync(name, { qos: 1, properties: { subscriptionIdentifier: 9 } });
    await client.publishAsync(name, 'x', {
      qos: 1,
      properties: {
        contentType: 'text/plain',
        correlationData: Buffer.from([1, 0, 254]),
        responseTopic: `${name}/r`,
        userProperties: { a: ['1', '2'], b: '3' },
        messageExpiryInterval: 100,
      },
    });
    const { properties } = (await next()).packet;
    await client.endAsync();
    return { ...properties, correlationData: properties.correlationData.toString('hex') };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
