//! Bits and codes.

use super::Refusal;

/// Codes up to this length are found with one look. Longer ones are rare.
const QUICK_BITS: u32 = 11;

/// A Huffman table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// For each possible beginning: length of the code in the high byte, symbol in the low one. Length 0: longer.
    quick: Vec<u16>,
    /// For each length: the first code that is longer, left-aligned in 16 bits.
    ends: [u32; 17],
    /// For each length: what to add to a code to get the index of its symbol.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

impl Table {
    /// From the number of codes of each length, 1 to 16, and the symbols in the codes' order.
    pub(super) fn new(counts: &[u8], symbols: &[u8]) -> Result<Self, Refusal> {
        let mut table =
            Self { quick: vec![0; 1 << QUICK_BITS], ends: [0; 17], offsets: [0; 17], symbols: symbols.to_vec() };
        let (mut code, mut index) = (0_u32, 0_usize);
        for (length, &count) in (1_u32..).zip(counts) {
            table.offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..count {
                if code >> length != 0 {
                    return Err(Refusal::Unsupported); // more codes than there are
                }
                if length <= QUICK_BITS {
                    let first = (code << (QUICK_BITS - length)) as usize;
                    let entry = (length << 8) as u16 | u16::from(symbols[index]);
                    table.quick[first..first + (1 << (QUICK_BITS - length))].fill(entry);
                }
                code += 1;
                index += 1;
            }
            table.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Ok(table)
    }
}

/// Reads bits, most significant first, from data without stuffing. Behind the end there are zeros, and
/// [`Bits::overrun`] tells.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, left-aligned.
    buffer: u64,
    /// How many of them are valid.
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, buffer: 0, count: 0 }
    }

    /// Makes at least 56 bits valid.
    #[inline(always)]
    fn refill(&mut self) {
        let next = match self.data.get(self.at..).and_then(|rest| rest.first_chunk()) {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => self.near_the_end(),
        };
        // Bits that are already there are written again with the same values.
        self.buffer |= next >> self.count;
        self.at += ((63 - self.count) >> 3) as usize;
        self.count |= 56;
    }

    #[cold]
    fn near_the_end(&self) -> u64 {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(bytes)
    }

    #[inline(always)]
    fn consume(&mut self, count: u32) {
        self.buffer <<= count;
        self.count -= count;
    }

    /// Whether more bits were read than there are.
    pub(super) fn overrun(&self) -> bool {
        self.at * 8 > self.data.len() * 8 + self.count as usize
    }

    /// The next symbol. At least 40 bits are valid after it.
    #[inline(always)]
    pub(super) fn symbol(&mut self, table: &Table) -> Result<u8, Refusal> {
        self.refill();
        let entry = table.quick[(self.buffer >> (64 - QUICK_BITS)) as usize];
        if entry != 0 {
            self.consume(u32::from(entry >> 8));
            return Ok(entry as u8);
        }
        self.long_symbol(table)
    }

    #[cold]
    fn long_symbol(&mut self, table: &Table) -> Result<u8, Refusal> {
        let next = (self.buffer >> 48) as u32;
        for length in QUICK_BITS + 1..=16 {
            if next < table.ends[length as usize] {
                let code = (next >> (16 - length)) as i32;
                let index = usize::try_from(code + table.offsets[length as usize]).unwrap_or(usize::MAX);
                self.consume(length);
                return table.symbols.get(index).copied().ok_or(Refusal::Unsupported);
            }
        }
        Err(Refusal::Unsupported)
    }

    /// The next `count` bits, 0 to 16, directly behind a symbol.
    #[inline(always)]
    pub(super) fn behind_symbol(&mut self, count: u32) -> u32 {
        // In two steps, because shifting by 64 is none.
        let bits = (self.buffer >> 1 >> (63 - count)) as u32;
        self.consume(count);
        bits
    }

    /// A signed number of `size` bits, 0 to 16, directly behind a symbol (T.81, F.2.2.1).
    #[inline(always)]
    pub(super) fn number(&mut self, size: u32) -> i32 {
        let bits = self.behind_symbol(size) as i32;
        let negative = bits < (1 << size >> 1);
        bits - if negative { (1 << size) - 1 } else { 0 }
    }

    /// The next `count` bits, 0 to 32.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        self.refill();
        self.behind_symbol(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_codes_are_found() {
        // One code of each length: 0, 10, 110, ... and the last of 16 bits.
        let table = Table::new(&[1; 16], &(1..=16).collect::<Vec<u8>>()).unwrap();
        for length in 1..=16_u32 {
            let code = ((1_u32 << length) - 2) << (32 - length);
            let data = code.to_be_bytes();
            let mut bits = Bits::new(&data);
            assert_eq!(bits.symbol(&table), Ok(length as u8));
            assert_eq!(bits.take(16 - length), 0);
            assert!(!bits.overrun());
        }
        assert_eq!(Bits::new(&[0xff; 4]).symbol(&table), Err(Refusal::Unsupported), "no such code");
        assert!(Table::new(&[3], &[1, 2, 3]).is_err(), "three codes of one bit");
    }

    #[test]
    fn numbers_have_their_sign_and_the_end_is_noticed() {
        let mut bits = Bits::new(&[0b0110_1100, 0b1000_0000]);
        let table = Table::new(&[2], &[7, 8]).unwrap();
        assert_eq!(bits.symbol(&table), Ok(7));
        assert_eq!(bits.number(2), 3);
        assert_eq!(bits.number(2), -2);
        assert_eq!(bits.number(0), 0);
        assert_eq!(bits.take(11), 0b100_1000_0000);
        assert!(!bits.overrun());
        assert_eq!(bits.take(1), 0);
        assert!(bits.overrun());
    }
}
