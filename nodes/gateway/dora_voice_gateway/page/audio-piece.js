// A piece of reply audio as the server sends it: uint64 segment, uint32 flags, uint32 text end, float32 samples, all
// little-endian.

const HEADER_BYTES = 16;
const FIN = 1;
const SPECULATIVE = 2;

/** `textEnd`: how far the reply's text is spoken when the piece has been played, in code points; 0: not said. */
export function audioPiece(buffer) {
  const header = new DataView(buffer, 0, HEADER_BYTES);
  const flags = header.getUint32(8, true);
  return {
    segmentId: Number(header.getBigUint64(0, true)),
    fin: Boolean(flags & FIN),
    speculative: Boolean(flags & SPECULATIVE),
    textEnd: header.getUint32(12, true),
    samples: new Float32Array(buffer.slice(HEADER_BYTES)),
  };
}
