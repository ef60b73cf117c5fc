// Shared by both programs: frames of a chunk link (rollcast/wire/links/frames.py), and a js-libp2p node with our identity.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import protobuf from 'protobufjs'

export const PROTOCOL = '/rollcast/chunk/1.0.0'
export const THROUGH_RELAYS = { runOnLimitedConnection: true }
const CERTIFICATE_PROTOCOL = '/rollcast/certificate/1.0.0'
export const SIGN_OF_LIFE = Uint8Array.of(0)
export const SIGN_EVERY_MS = 5_000
export const MESSAGE = 1, CHUNK = 2, CHUNK_HEADER_BYTES = 18
const DEADLINE_MS = 20_000

// libp2p calls it, and node 20 lacks it.
Promise.withResolvers ??= () => {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

/** A queue of outgoing bytes of one stream, to be passed to the stream's sink. */
export class Leaving {
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

/** Returns one frame of this kind. */
export function frame (kind, body) {
  const header = Buffer.alloc(5)
  header.writeUInt8(kind, 0)
  header.writeUInt32BE(body.length, 1)
  return Buffer.concat([header, body])
}

/** Yields the frames of a lane as {kind, body}. */
export async function * frames (source) {
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

/** Returns node, message schema and settings of a folder that holds settings.json, certificate.der and seed. */
export async function begin (folder, listen = []) {
  const settings = JSON.parse(readFileSync(join(folder, 'settings.json'), 'utf8'))
  const node = await createLibp2p({
    privateKey: await generateKeyPairFromSeed('Ed25519', readFileSync(join(folder, 'seed'))),
    addresses: { listen },
    transports: [tcp(), circuitRelayTransport()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify(), ping: ping() }
  })
  const LinkMessage = (await protobuf.load(settings.proto)).lookupType('rollcast.v1.LinkMessage')
  const hello = {
    protocol: { min: settings.protocol_min, max: settings.protocol_max },
    runId: settings.run_id,
    software: 'js-libp2p',
    certificateDer: readFileSync(join(folder, 'certificate.der')).toString('base64')
  }
  const encode = message => frame(MESSAGE, LinkMessage.encode(LinkMessage.fromObject(message)).finish())
  return { settings, node, hello, encode, decode: body => LinkMessage.decode(body) }
}

/** Shows the certificate in this folder to a relay, which serves only members of the run. */
export async function showCertificate (node, folder, relay) {
  const certificate = readFileSync(join(folder, 'certificate.der'))
  const size = Buffer.alloc(2)
  size.writeUInt16BE(certificate.length)
  const connection = await node.dial(multiaddr(relay))
  const stream = await connection.newStream(CERTIFICATE_PROTOCOL)
  const leaving = new Leaving()
  stream.sink(leaving).catch(() => {}) // the other end closed
  leaving.push(Buffer.concat([size, certificate]))
  for await (const piece of stream.source) {
    if (piece.subarray()[0] !== 1) throw new Error('the relay takes us for no member of the run')
    leaving.end()
    return
  }
  throw new Error('the relay said nothing')
}

/** Runs a program until it returns, fails, or misses its deadline. */
export function run (main) {
  setTimeout(() => { console.error('took too long'); process.exit(1) }, DEADLINE_MS)
  main(process.argv[2]).then(() => process.exit(0), error => { console.error(error); process.exit(1) })
}
