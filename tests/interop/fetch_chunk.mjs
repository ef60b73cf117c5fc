// js-libp2p as the other end of a chunk link (docs/p2p.md): dials a Rollcast peer, lets it identify itself, pings it,
// greets with a certificate of the run, and fetches one chunk. Prints one line of JSON.
//
// usage: node fetch_chunk.mjs FOLDER, which holds settings.json, certificate.der and seed (32 bytes, Ed25519)
//
// settings: address, peer_id, run_id, protocol_min, protocol_max, version, encoding_id, index, proto (path)

import { createHash, randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import protobuf from 'protobufjs'

const PROTOCOL = '/rollcast/chunk/1.0.0'
const DEADLINE_MS = 20_000
const SIGN_OF_LIFE = Uint8Array.of(0)
const SIGN_EVERY_MS = 5_000
const MESSAGE = 1, CHUNK = 2, CHUNK_HEADER_BYTES = 18

// Node 20 lacks it, and libp2p calls it.
Promise.withResolvers ??= () => {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

/** What leaves on one stream: give it to the stream's sink. */
class Leaving {
  #waiting = []
  #wake = () => {}
  #ended = false

  push (bytes) { this.#waiting.push(bytes); this.#wake() }
  end () { this.#ended = true; this.#wake() }

  async * [Symbol.asyncIterator] () {
    for (;;) {
      while (this.#waiting.length > 0) yield this.#waiting.shift()
      if (this.#ended) return
      await new Promise(resolve => { this.#wake = resolve })
    }
  }
}

function frame (message) {
  const header = Buffer.alloc(5)
  header.writeUInt8(MESSAGE, 0)
  header.writeUInt32BE(message.length, 1)
  return Buffer.concat([header, message])
}

/** Frames of a lane: {kind, body}. */
async function * frames (source) {
  let held = Buffer.alloc(0)
  for await (const piece of source) {
    held = Buffer.concat([held, piece.subarray()])
    while (held.length >= 5 && held.length >= 5 + held.readUInt32BE(1)) {
      const end = 5 + held.readUInt32BE(1)
      yield { kind: held.readUInt8(0), body: held.subarray(5, end) }
      held = held.subarray(end)
    }
  }
}

/** One lane: a connection of its own with one stream. */
async function lane (node, address, name, token) {
  const connection = await node.dial(address, { force: true })
  const stream = await connection.newStream(PROTOCOL)
  const leaving = new Leaving()
  stream.sink(leaving).catch(error => { if (!leaving.over) throw error })
  leaving.push(Buffer.concat([Uint8Array.of(name), token]))
  return { connection, stream, leaving }
}

function identified (node, peerId) {
  return new Promise(resolve => node.addEventListener('peer:identify', event => {
    if (event.detail.peerId.toString() === peerId) resolve(event.detail)
  }))
}

async function main (folder) {
  const settings = JSON.parse(readFileSync(join(folder, 'settings.json'), 'utf8'))
  const schema = await protobuf.load(settings.proto)
  const LinkMessage = schema.lookupType('rollcast.v1.LinkMessage')
  const told = {}

  const node = await createLibp2p({
    privateKey: await generateKeyPairFromSeed('Ed25519', readFileSync(join(folder, 'seed'))),
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify(), ping: ping() }
  })
  const address = multiaddr(`${settings.address}/p2p/${settings.peer_id}`)
  const identity = identified(node, settings.peer_id)
  await node.dial(address)
  const { agentVersion, protocols } = await identity
  told.agent = agentVersion
  told.identified = protocols.includes(PROTOCOL)
  told.ping_ms = await node.services.ping.ping(address)

  const token = randomBytes(16)
  const up = await lane(node, address, 0, token)
  const down = await lane(node, address, 1, token)
  const alive = setInterval(() => down.leaving.push(SIGN_OF_LIFE), SIGN_EVERY_MS)
  down.leaving.push(SIGN_OF_LIFE)
  const send = message => up.leaving.push(frame(LinkMessage.encode(LinkMessage.fromObject(message)).finish()))
  const chunk = { version: settings.version, encodingId: settings.encoding_id }

  send({
    hello: {
      protocol: { min: settings.protocol_min, max: settings.protocol_max },
      runId: settings.run_id,
      software: 'js-libp2p',
      certificateDer: readFileSync(join(folder, 'certificate.der')).toString('base64')
    }
  })
  for await (const { kind, body } of frames(down.stream.source)) {
    if (kind === CHUNK) {
      told.index = body.readUInt32BE(12)
      told.bytes = body.length - CHUNK_HEADER_BYTES
      told.sha256 = createHash('sha256').update(body.subarray(CHUNK_HEADER_BYTES)).digest('hex')
      break
    }
    const message = LinkMessage.decode(body)
    if (message.error) throw new Error(`${message.error.code} ${message.error.what}`)
    if (message.hello) {
      told.software = message.hello.software
      send({ want: { ...chunk, chunkList: true } })
    }
    if (message.chunkList) {
      told.chunks = message.chunkList.hashes.length / 32
      send({ request: { ...chunk, indices: [settings.index] } })
    }
  }
  console.log(JSON.stringify(told))
  clearInterval(alive)
  await node.stop()
  process.exit(0)
}

setTimeout(() => { console.error('took too long'); process.exit(1) }, DEADLINE_MS)
main(process.argv[2]).catch(error => { console.error(error); process.exit(1) })
