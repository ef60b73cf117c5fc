// Runs js-libp2p as the other end of a chunk link (docs/p2p.md): dials a Rollcast peer, identifies and pings it, greets
// with a certificate of the run, fetches one chunk, and prints one line of JSON.
//
// usage: node fetch_chunk.mjs FOLDER, which holds settings.json, certificate.der and seed (32 bytes, Ed25519)
//
// settings: address, peer_id, run_id, protocol_min, protocol_max, version, encoding_id, index, proto (path), and relay: the
// libp2p address of the relay that the address goes through, if any

import { createHash, randomBytes } from 'node:crypto'
import { multiaddr } from '@multiformats/multiaddr'
import {
  begin, CHUNK, CHUNK_HEADER_BYTES, frames, Leaving, PROTOCOL, run, showCertificate, SIGN_EVERY_MS, SIGN_OF_LIFE,
  THROUGH_RELAYS
} from './link.mjs'

/** Opens one lane: a connection of its own with one stream. */
async function lane (node, address, name, token) {
  const connection = await node.dial(address, { force: true })
  const stream = await connection.newStream(PROTOCOL, THROUGH_RELAYS)
  const leaving = new Leaving()
  stream.sink(leaving).catch(() => {}) // the other end closed
  leaving.push(Buffer.concat([Uint8Array.of(name), token]))
  return { connection, stream, leaving }
}

function identified (node, peerId) {
  return new Promise(resolve => node.addEventListener('peer:identify', event => {
    if (event.detail.peerId.toString() === peerId) resolve(event.detail)
  }))
}

async function main (folder) {
  const { settings, node, hello, encode, decode } = await begin(folder)
  const told = {}
  const address = multiaddr(`${settings.address}/p2p/${settings.peer_id}`)
  if (settings.relay) await showCertificate(node, folder, settings.relay)
  const identity = identified(node, settings.peer_id)
  await node.dial(address)
  const { agentVersion, protocols } = await identity
  told.agent = agentVersion
  told.limited = node.getConnections().some(one => one.limits !== undefined)
  told.identified = protocols.includes(PROTOCOL)
  told.ping_ms = await node.services.ping.ping(address)

  const token = randomBytes(16)
  const up = await lane(node, address, 0, token)
  const down = await lane(node, address, 1, token)
  const alive = setInterval(() => down.leaving.push(SIGN_OF_LIFE), SIGN_EVERY_MS)
  down.leaving.push(SIGN_OF_LIFE)
  const send = message => up.leaving.push(encode(message))
  const chunk = { version: settings.version, encodingId: settings.encoding_id }

  send({ hello })
  for await (const { kind, body } of frames(down.stream.source)) {
    if (kind === CHUNK) {
      told.index = body.readUInt32BE(12)
      told.bytes = body.length - CHUNK_HEADER_BYTES
      told.sha256 = createHash('sha256').update(body.subarray(CHUNK_HEADER_BYTES)).digest('hex')
      break
    }
    const message = decode(body)
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
}

run(main)
