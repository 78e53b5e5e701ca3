// amqp-client.js over WebSocket: one scenario by name, its result as one line of JSON.
import { AMQPWebSocketClient } from '@cloudamqp/amqp-client';
import WebSocket from 'ws';

// Node has one of its own from version 22 on.
globalThis.WebSocket = WebSocket;

const [url, scenario, name] = process.argv.slice(2);
const client = new AMQPWebSocketClient(url);
const connection = await client.connect();

const scenarios = {
  async roundtrip() {
    const channel = await connection.channel();
    await channel.confirmSelect();
    await channel.queueDeclare(name);
    for (let i = 0; i < 200; i += 1) {
      await channel.basicPublish('', name, `${i}`, { deliveryMode: 2 });
    }
    const found = [];
    await new Promise((resolve) => {
      channel.basicConsume(name, { noAck: false }, (message) => {
        found.push(message.bodyString());
        message.ack();
        if (found.length === 200) resolve();
      });
    });
    await channel.queueDelete(name);
    return found;
  },

  async large() {
    // More than one frame of AMQP, and of WebSocket.
    const channel = await connection.channel();
    await channel.confirmSelect();
    await channel.queueDeclare(name);
    await channel.basicPublish('', name, 'x'.repeat(1_000_000));
    const message = await channel.basicGet(name);
    await channel.queueDelete(name);
    return message.bodyString().length;
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
await connection.close();
