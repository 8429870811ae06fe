// The client ali-ons of Node, which reads commands as lines and writes JSON lines, as the probe in Java does.
'use strict';

const { createInterface } = require('node:readline');
const { crc32 } = require('node:zlib');
const { Consumer, Message, Producer } = require('ali-ons');

const IDLE_CHECK_MS = 50;
let names = 0;

const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const print = event => process.stdout.write(`${JSON.stringify(event)}\n`);
const report = error => process.stderr.write(`${error}\n`);
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

function client(options, more) {
  names += 1;
  return { nameSrv: options.namesrv, instanceName: `${process.pid}-${names}`, logger: quiet, httpclient: {}, ...more };
}

function body(index, size) {
  const bytes = Buffer.alloc(size);
  for (let j = 0; j < size; j++) bytes[j] = 31 * index + 7 * j;
  return bytes;
}

function message(options, index) {
  const sizes = (options.sizes || '100').split(',');
  const tags = options.tags ? options.tags.split(',') : [''];
  const made = new Message(options.topic, tags[index % tags.length], body(index, Number(sizes[index % sizes.length])));
  if (options.keys) made.keys = [`${options.keys}${index}`];
  if (options.delay) made.delayTimeLevel = Number(options.delay);
  if (options.property) {
    const [name, value] = options.property.split(':');
    made.properties[name] = value;
  }
  if (options.shards) made.shardingKey = `shard-${index % Number(options.shards)}`;
  return made;
}

// Listens to the producer that the client creates by itself. Any error without a listener ends the process.
async function listen() {
  const inner = await Producer.getDefaultProducer();
  if (inner.listenerCount('error') === 0) inner.on('error', report);
}

// Sends again for a time, as a program does that must not lose a message.
async function patient(options, once) {
  const giveUp = Date.now() + Number(options.retryMs || 0);
  for (;;) {
    try {
      return await once();
    } catch (error) {
      if (Date.now() >= giveUp) throw error;
      await pause(100);
    }
  }
}

async function send(options) {
  const producer = new Producer(client(options, { producerGroup: options.group || 'node-producers' }));
  producer.on('error', report);
  await producer.ready();
  await listen();
  const first = Number(options.first || 0);
  for (let index = first; index < first + Number(options.count || 1); index++) {
    try {
      const result = await patient(options, () => producer.send(message(options, index)));
      const { queueId } = result.messageQueue;
      print({ event: 'sent', index, status: result.sendStatus, msgId: result.msgId, queueId, queueOffset: Number(result.queueOffset) });
    } catch (error) {
      print({ event: 'failed', index, error: String(error) });
    }
  }
  await producer.close();
  producer.on('error', report); // The client reports errors of connections to closed producers, too.
}

async function consume(options) {
  const consumer = new Consumer(client(options, {
    consumerGroup: options.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    isBroadcast: options.model === 'broadcasting',
    rebalanceInterval: 1000,
    pollNameServerInteval: 1000,
  }));
  consumer.on('error', report);
  let count = 0;
  let last = Date.now();
  const expression = options.expression || '*';
  const selector = options.type === 'SQL92' ? { expressionType: 'SQL92', subString: expression } : expression;
  consumer.subscribe(options.topic, selector, async found => {
    print({
      event: 'received', topic: found.topic, queueId: found.queueId, queueOffset: Number(found.queueOffset),
      reconsumeTimes: found.reconsumeTimes, crc: crc32(found.body), keys: found.keys, tags: found.tags,
      bornTimestamp: Number(found.bornTimestamp), storeTimestamp: Number(found.storeTimestamp),
    });
    count += 1;
    last = Date.now();
    return found.reconsumeTimes < Number(options.refuse || 0) ? Consumer.ACTION_RETRY : undefined;
  });
  await consumer.ready();
  await listen();
  const most = Number(options.max || Infinity);
  const firstBy = Date.now() + Number(options.firstMs || 10_000);
  const idle = Number(options.idleMs || 1500);
  while (count < most && (count ? Date.now() - last < idle : Date.now() < firstBy)) await pause(IDLE_CHECK_MS);
  await pause(200); // The last result is still being sent.
  await consumer.close();
}

async function run(line) {
  const [command, ...words] = line.split(' ');
  const options = {};
  for (const word of words) {
    const place = word.indexOf('=');
    options[word.slice(0, place)] = decodeURIComponent(word.slice(place + 1));
  }
  try {
    await { send, consume }[command](options);
    print({ event: 'done' });
  } catch (error) {
    print({ event: 'fault', error: String(error.stack || error) });
  }
}

process.on('unhandledRejection', report);
print({ event: 'ready' });
let running = Promise.resolve();
createInterface({ input: process.stdin })
  .on('line', line => { running = running.then(() => run(line)); })
  .on('close', () => process.exit(0));
