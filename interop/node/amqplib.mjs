// amqplib against a broker: one scenario by name, its result as one line of JSON.
import { connect } from 'amqplib';

const [port, scenario, name] = process.argv.slice(2);
const scheme = process.env.OVER_TLS ? 'amqps' : 'amqp';
const connection = await connect(`${scheme}://guest:guest@127.0.0.1:${port}`);

// The first `count` messages of a queue.
const take = (channel, queue, count, options = { noAck: true }) =>
  new Promise((resolve, reject) => {
    const found = [];
    channel.on('error', reject);
    channel
      .consume(
        queue,
        (message) => {
          // Null says that the queue was deleted.
          if (message !== null) found.push(message);
          if (message !== null && found.length === count) resolve(found);
        },
        options,
      )
      .catch(reject);
  });

const scenarios = {
  async roundtrip() {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { durable: true });
    for (let i = 0; i < 200; i += 1) {
      channel.sendToQueue(name, Buffer.from(`${i}`), { persistent: true });
    }
    await channel.waitForConfirms();
    const found = await take(channel, name, 200);
    await channel.deleteQueue(name);
    return found.map((message) => message.content.toString());
  },

  async properties() {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    channel.sendToQueue(queue, Buffer.from([0, 255]), {
      contentType: 'application/json',
      correlationId: 'c',
      replyTo: 'r',
      expiration: 60000,
      messageId: 'm',
      headers: { text: 'ü', number: 5, flag: true, nothing: null, list: [1, { a: 'b' }], f: 0.25 },
    });
    await channel.waitForConfirms();
    const [message] = await take(channel, queue, 1);
    const { contentType, correlationId, replyTo, expiration, messageId, headers } =
      message.properties;
    return {
      body: message.content.toString('hex'),
      contentType, correlationId, replyTo, expiration, messageId, headers,
    };
  },

  async topic() {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.assertExchange(name, 'topic', { durable: false });
    await channel.bindQueue(queue, name, 'a.*.c');
    for (const key of ['a.b.c', 'a.c', 'a..c']) channel.publish(name, key, Buffer.from(key));
    await channel.waitForConfirms();
    const found = await take(channel, queue, 2);
    await channel.deleteExchange(name);
    return found.map((message) => message.fields.routingKey);
  },

  async redelivery() {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name);
    channel.sendToQueue(name, Buffer.from('x'));
    await channel.waitForConfirms();
    const first = await connection.createChannel();
    const [once] = await take(first, name, 1, {});
    await first.close();
    const [again] = await take(channel, name, 1);
    await channel.deleteQueue(name);
    return [once.fields.redelivered, again.fields.redelivered];
  },

  async refusal() {
    const channel = await connection.createChannel();
    channel.on('error', () => {});
    const refused = await channel.checkQueue(name).catch((error) => error);
    const other = await connection.createChannel();
    await other.assertQueue('', { exclusive: true });
    return refused.message;
  },

  async returned() {
    const channel = await connection.createConfirmChannel();
    const returned = new Promise((resolve) => channel.once('return', resolve));
    channel.publish('amq.direct', name, Buffer.from('x'), { mandatory: true });
    await channel.waitForConfirms();
    const { fields } = await returned;
    return [fields.replyCode, fields.replyText, fields.routingKey];
  },
};

const result = await scenarios[scenario]();
await connection.close();
console.log(JSON.stringify(result));
