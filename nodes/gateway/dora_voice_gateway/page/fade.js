// How sound begins and stops without a click.

export const FADE_SAMPLES = 240; // 10 ms at 24 kHz

/** Down to zero at the last of `samples`. */
export function fadedOut(samples) {
  return samples.map((sample, index) => sample * (1 - (index + 1) / samples.length));
}

/** Up to the full level after the last of `samples`, at most FADE_SAMPLES; before fewer there was silence. */
export function fadedIn(samples) {
  const start = FADE_SAMPLES - samples.length;
  return samples.map((sample, index) => (sample * (start + index)) / FADE_SAMPLES);
}

export function joined(...parts) {
  const whole = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  let position = 0;
  for (const part of parts) {
    whole.set(part, position);
    position += part.length;
  }
  return whole;
}
