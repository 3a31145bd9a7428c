//! Bounds the memory of the prefix codes in a lossless WebP (RFC 9649 §3), before it is decoded.
//!
//! The decoder, `image-webp` 0.2.4, builds as many codes as the image asks for: up to 327,680 of them, and 1.4 GB from a
//! file of 3.8 MB for 16×16 pixels. This module reads an image only as far as its codes. A malformed image passes: the
//! decoder fails at the same place. This module must stop there, too: in a code without a symbol, lengths take no bits, so that
//! a small file can have any number of them.

use std::iter;

use crate::domain::image::Facts;

/// Maximum memory in bytes of the codes of an image. libwebp writes at most 2,600 groups of codes, most of them small.
const MAX_MEMORY: usize = 48 << 20;
/// Numbers of symbols of the five codes in a group: green with lengths, red, blue, alpha, distance.
const ALPHABETS: [usize; 5] = [280, 256, 256, 256, 40];

/// Returns true if the codes of an image or of an alpha channel that a decoder would read take too much memory.
pub fn exceed_memory(webp: &[u8], facts: Facts) -> bool {
    let canvas = (facts.width as usize, facts.height as usize);
    let file = webp.get(12..).unwrap_or_default();
    let frame = first(file, *b"ANMF").and_then(|frame| frame.split_at_checked(16));
    let mut images = vec![(canvas, file)];
    images.extend(frame.map(|(head, chunks)| {
        let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        ((number(6) + 1, number(9) + 1), chunks)
    }));
    images.into_iter().any(|(size, chunks)| {
        // The headers take 5 bytes, and one.
        let colours = first(chunks, *b"VP8L").and_then(|data| data.get(5..));
        let alpha =
            first(chunks, *b"ALPH").filter(|data| data.first().is_some_and(|it| it & 3 == 1));
        let streams = [colours, alpha.and_then(|data| data.get(1..))];
        let mut streams = streams.into_iter().flatten();
        streams.any(|data| Stream { data, at: 0 }.exceeds(size).unwrap_or(false))
    })
}

/// Returns the data of the first chunk of a kind.
fn first(mut chunks: &[u8], wanted: [u8; 4]) -> Option<&[u8]> {
    let mut all = iter::from_fn(|| {
        let ([kind @ .., a, b, c, d], rest) = chunks.split_first_chunk::<8>()?;
        let length = usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).ok()?;
        let (data, rest) = rest.split_at_checked(length)?;
        chunks = rest.get(length % 2..).unwrap_or_default();
        Some((kind, data))
    });
    all.find_map(|(kind, data)| (*kind == wanted).then_some(data))
}

/// Bits of an image, read from the least significant one of each byte. Methods return `None` at the end.
struct Stream<'d> {
    data: &'d [u8],
    at: usize,
}

impl Stream<'_> {
    /// Returns true if the codes exceed the maximum.
    fn exceeds(&mut self, (width, height): (usize, usize)) -> Option<bool> {
        let (mut width, mut transforms) = (width, [false; 4]);
        while self.read(1)? == 1 {
            let kind = self.read(2)?;
            // Each kind occurs once at most.
            if std::mem::replace(&mut transforms[kind], true) {
                return None;
            }
            match kind {
                2 => {}
                3 => {
                    let colours = self.read(8)? + 1;
                    self.skip_pixels(colours)?;
                    width = match colours {
                        ..=2 => width.div_ceil(8),
                        3..=4 => width.div_ceil(4),
                        5..=16 => width.div_ceil(2),
                        _ => width,
                    };
                }
                _ => drop(self.skip_blocks((width, height))?),
            }
        }
        let cache = self.cache_size()?;
        let groups = match self.read(1)? {
            0 => 1,
            _ => self.skip_blocks((width, height))? + 1,
        };
        let mut memory = 0;
        for _ in 0..groups {
            let codes = self.group(cache)?;
            memory += codes.iter().map(Code::memory).sum::<usize>();
            if memory > MAX_MEMORY {
                return Some(true);
            }
        }
        Some(false)
    }

    fn read(&mut self, bits: usize) -> Option<usize> {
        let mut value = 0;
        for bit in 0..bits {
            let byte = self.data.get(self.at / 8)?;
            value |= usize::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Some(value)
    }

    /// Skips an image with one pixel per block.
    fn skip_blocks(&mut self, (width, height): (usize, usize)) -> Option<usize> {
        let side = 4 << self.read(3)?;
        self.skip_pixels(width.div_ceil(side) * height.div_ceil(side))
    }

    /// Skips an image, and returns the largest number of a group in its red and green channels. Pixels that are copied
    /// have no larger one.
    fn skip_pixels(&mut self, number: usize) -> Option<usize> {
        let cache = self.cache_size()?;
        let [green, red, blue, alpha, distance] = self.group(cache)?;
        let (mut at, mut largest) = (0, 0);
        while at < number {
            let symbol = green.read(self)?;
            at += match symbol {
                0..256 => {
                    largest = largest.max(red.read(self)? << 8 | symbol);
                    blue.read(self)?;
                    alpha.read(self)?;
                    1
                }
                256..280 => {
                    let length = self.prefixed(symbol - 256)?;
                    let distance = distance.read(self)?;
                    self.prefixed(distance)?;
                    length
                }
                _ => 1,
            };
        }
        Some(largest)
    }

    /// Reads the rest of a length or distance.
    fn prefixed(&mut self, prefix: usize) -> Option<usize> {
        if prefix < 4 {
            return Some(prefix + 1);
        }
        let extra = (prefix - 2) / 2;
        Some(((2 + prefix % 2) << extra) + self.read(extra)? + 1)
    }

    fn cache_size(&mut self) -> Option<usize> {
        if self.read(1)? == 0 {
            return Some(0);
        }
        let bits = self.read(4)?;
        (1..=11).contains(&bits).then_some(1 << bits)
    }

    fn group(&mut self, cache: usize) -> Option<[Code; 5]> {
        let [green, red, blue, alpha, distance] = ALPHABETS;
        Some([
            self.code(green + cache)?,
            self.code(red)?,
            self.code(blue)?,
            self.code(alpha)?,
            self.code(distance)?,
        ])
    }

    fn code(&mut self, alphabet: usize) -> Option<Code> {
        const ORDER: [usize; 19] = [
            17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        ];
        if self.read(1)? == 1 {
            let has_two = self.read(1)? == 1;
            let bits = 1 + 7 * self.read(1)?;
            let mut symbols = vec![self.read(bits)?];
            if has_two {
                symbols.push(self.read(8)?);
            }
            let is_valid = symbols.iter().all(|symbol| *symbol < alphabet);
            return is_valid.then(|| Code::simple(symbols));
        }
        let (number, mut lengths) = (4 + self.read(4)?, vec![0; ORDER.len()]);
        for place in ORDER.into_iter().take(number) {
            lengths[place] = self.read(3)?;
        }
        let code = Code::new(&lengths)?;
        let mut left = alphabet;
        if self.read(1)? == 1 {
            let bits = 2 + 2 * self.read(3)?;
            left = 2 + self.read(bits)?;
            if left > alphabet {
                return None;
            }
        }
        let (mut lengths, mut previous) = (Vec::new(), 8);
        while lengths.len() < alphabet && left > 0 {
            left -= 1;
            let (length, times) = match code.read(self)? {
                16 => (previous, 3 + self.read(2)?),
                17 => (0, 3 + self.read(3)?),
                18 => (0, 11 + self.read(7)?),
                length => (length, 1),
            };
            if length > 0 {
                previous = length;
            }
            lengths.resize(lengths.len() + times, length);
        }
        if lengths.len() > alphabet {
            return None;
        }
        Code::new(&lengths)
    }
}

/// Canonical prefix code.
struct Code {
    /// Number of symbols by the length of their code in bits.
    counts: [usize; 16],
    /// Symbols in the order of their codes.
    symbols: Vec<usize>,
}

impl Code {
    /// Returns `None` for a code without a symbol, and for one that does not use all combinations of its bits.
    fn new(lengths: &[usize]) -> Option<Self> {
        let (mut counts, mut places) = ([0; 16], [0; 16]);
        let used = (lengths.iter().enumerate()).filter(|(_, length)| **length > 0);
        used.clone().for_each(|(_, length)| counts[*length] += 1);
        for length in 1..counts.len() {
            places[length] = places[length - 1] + counts[length - 1];
        }
        let number = counts.iter().sum();
        let longest = counts.iter().rposition(|count| *count > 0)?;
        let combinations = counts[1..=longest]
            .iter()
            .fold(0, |sum, count| (sum + count) << 1);
        // The decoder compares 16 bits of both.
        if number > 1 && combinations % (1 << 16) != (2 << longest) % (1 << 16) {
            return None;
        }
        let mut symbols = vec![0; number];
        for (symbol, length) in used {
            symbols[places[*length]] = symbol;
            places[*length] += 1;
        }
        Some(Self { counts, symbols })
    }

    fn simple(symbols: Vec<usize>) -> Self {
        let mut counts = [0; 16];
        counts[1] = symbols.len();
        Self { counts, symbols }
    }

    /// Reads a symbol. The only symbol of a code takes no bits.
    fn read(&self, stream: &mut Stream<'_>) -> Option<usize> {
        if let [only] = self.symbols[..] {
            return Some(only);
        }
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in &self.counts[1..] {
            code = code << 1 | stream.read(1)?;
            first <<= 1;
            if code < first + count {
                return self.symbols.get(index + code - first).copied();
            }
            (first, index) = (first + count, index + count);
        }
        None
    }

    /// Memory of the decoder for the code: a table, and a tree for codes of more than 10 bits.
    fn memory(&self) -> usize {
        let longest = self.counts.iter().rposition(|count| *count > 0);
        let in_tree: usize = self.counts[11..].iter().sum();
        64 + (4 << longest.unwrap_or_default().min(10)) + 32 * in_tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::image::ImageType;

    #[test]
    fn codes_of_an_encoder_pass() {
        let facts = Facts {
            kind: ImageType::WebP,
            width: 300,
            height: 200,
        };
        let mut bytes = std::io::Cursor::new(Vec::new());
        let image = image::RgbaImage::from_fn(300, 200, |x, y| {
            let [a, b] = [x * 7 % 256, x * y % 256].map(|it| u8::try_from(it).expect("a byte"));
            image::Rgba([a, b, a ^ b, 200])
        });
        image
            .write_to(&mut bytes, image::ImageFormat::WebP)
            .expect("an image");
        assert!(!exceed_memory(bytes.get_ref(), facts));
        // Read to the end: the last code is complete.
        let data = first(&bytes.get_ref()[12..], *b"VP8L").expect("an image");
        let mut stream = Stream {
            data: &data[5..],
            at: 0,
        };
        assert_eq!(stream.exceeds((300, 200)), Some(false));
        assert!(stream.at < 8 * data.len());
    }
}
