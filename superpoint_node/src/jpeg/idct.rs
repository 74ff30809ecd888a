//! The inverse transform of a block, in the arithmetic of libjpeg's `jidctint.c` (`jpeg_idct_islow`).

/// Bits after the point of the constants.
const CONST_BITS: i32 = 13;
/// Bits more than needed after the first pass.
const PASS1_BITS: i32 = 2;
const FIRST_PASS: i32 = CONST_BITS - PASS1_BITS;
const SECOND_PASS: i32 = CONST_BITS + PASS1_BITS + 3;

/// The samples of a block from its coefficients and what one of each stands for, all row by row.
#[inline(always)]
pub(super) fn inverse(coefficients: &[i16; 64], quantization: &[u16; 64]) -> [[u8; 8]; 8] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2, the only thing that the function asks for.
        return unsafe { avx2::inverse(coefficients, quantization) };
    }
    portable(coefficients, quantization)
}

fn portable(coefficients: &[i16; 64], quantization: &[u16; 64]) -> [[u8; 8]; 8] {
    let value = |at: usize| i32::from(coefficients[at]).wrapping_mul(i32::from(quantization[at]));
    let mut values = [[0_i32; 8]; 8];
    for column in 0..8 {
        let done = pass::<i32, FIRST_PASS>(std::array::from_fn(|row| value(8 * row + column)));
        values.iter_mut().zip(done).for_each(|(row, value)| row[column] = value);
    }
    values.map(|row| pass::<i32, SECOND_PASS>(row).map(|value| value.wrapping_add(128).clamp(0, 255) as u8))
}

/// A number, or a vector of them. Damaged files may overflow, which wraps.
trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn times(self, constant: i32) -> Self;
    fn up<const BITS: i32>(self) -> Self;
    /// Divided by a power of two, rounded.
    fn down<const BITS: i32>(self) -> Self;
}

impl Number for i32 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn times(self, constant: i32) -> Self {
        self.wrapping_mul(constant)
    }

    #[inline(always)]
    fn up<const BITS: i32>(self) -> Self {
        self << BITS
    }

    #[inline(always)]
    fn down<const BITS: i32>(self) -> Self {
        self.wrapping_add(1 << (BITS - 1)) >> BITS
    }
}

/// The transform along one axis.
#[inline(always)]
fn pass<N: Number, const SHIFT: i32>([i0, i1, i2, i3, i4, i5, i6, i7]: [N; 8]) -> [N; 8] {
    // Even part.
    let z1 = i2.add(i6).times(4433);
    let t2 = z1.add(i6.times(-15137));
    let t3 = z1.add(i2.times(6270));
    let t0 = i0.add(i4).up::<CONST_BITS>();
    let t1 = i0.sub(i4).up::<CONST_BITS>();
    let (t10, t13) = (t0.add(t3), t0.sub(t3));
    let (t11, t12) = (t1.add(t2), t1.sub(t2));

    // Odd part.
    let z5 = i7.add(i3).add(i5.add(i1)).times(9633);
    let z1 = i7.add(i1).times(-7373);
    let z2 = i5.add(i3).times(-20995);
    let z3 = i7.add(i3).times(-16069).add(z5);
    let z4 = i5.add(i1).times(-3196).add(z5);
    let t0 = i7.times(2446).add(z1.add(z3));
    let t1 = i5.times(16819).add(z2.add(z4));
    let t2 = i3.times(25172).add(z2.add(z3));
    let t3 = i1.times(12299).add(z1.add(z4));

    [
        t10.add(t3).down::<SHIFT>(),
        t11.add(t2).down::<SHIFT>(),
        t12.add(t1).down::<SHIFT>(),
        t13.add(t0).down::<SHIFT>(),
        t13.sub(t0).down::<SHIFT>(),
        t12.sub(t1).down::<SHIFT>(),
        t11.sub(t2).down::<SHIFT>(),
        t10.sub(t3).down::<SHIFT>(),
    ]
}

/// All eight columns, then all eight rows at once. The compiler does not find this vectorization by itself.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{FIRST_PASS, Number, SECOND_PASS, pass};

    /// Eight numbers. Only [`inverse`] makes them, which runs where AVX2 is.
    #[derive(Clone, Copy)]
    struct Eight(__m256i);

    impl Number for Eight {
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: AVX2 is there, see the type.
            Self(unsafe { _mm256_add_epi32(self.0, other.0) })
        }

        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: AVX2 is there, see the type.
            Self(unsafe { _mm256_sub_epi32(self.0, other.0) })
        }

        #[inline(always)]
        fn times(self, constant: i32) -> Self {
            // SAFETY: AVX2 is there, see the type.
            Self(unsafe { _mm256_mullo_epi32(self.0, _mm256_set1_epi32(constant)) })
        }

        #[inline(always)]
        fn up<const BITS: i32>(self) -> Self {
            // SAFETY: AVX2 is there, see the type.
            Self(unsafe { _mm256_slli_epi32::<BITS>(self.0) })
        }

        #[inline(always)]
        fn down<const BITS: i32>(self) -> Self {
            // SAFETY: AVX2 is there, see the type.
            Self(unsafe { _mm256_srai_epi32::<BITS>(_mm256_add_epi32(self.0, _mm256_set1_epi32(1 << (BITS - 1)))) })
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn inverse(coefficients: &[i16; 64], quantization: &[u16; 64]) -> [[u8; 8]; 8] {
        let rows = std::array::from_fn(|row| {
            let (coefficients, quantization) = (&coefficients[8 * row..][..8], &quantization[8 * row..][..8]);
            // SAFETY: both are 16 bytes, the loads ask for no alignment, and AVX2 is there, see the function.
            unsafe {
                let coefficients = _mm256_cvtepi16_epi32(_mm_loadu_si128(coefficients.as_ptr().cast()));
                let quantization = _mm256_cvtepu16_epi32(_mm_loadu_si128(quantization.as_ptr().cast()));
                Eight(_mm256_mullo_epi32(coefficients, quantization))
            }
        });
        let columns = transposed(pass::<Eight, FIRST_PASS>(rows));
        let rows = transposed(pass::<Eight, SECOND_PASS>(columns));

        let middle = _mm256_set1_epi16(128);
        // Narrowing works within halves of a vector: the order of quarters is put right at the end.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let mut samples = [[0; 8]; 8];
        for (four, out) in rows.as_chunks::<4>().0.iter().zip(samples.as_chunks_mut::<4>().0) {
            let first = _mm256_adds_epi16(_mm256_packs_epi32(four[0].0, four[1].0), middle);
            let second = _mm256_adds_epi16(_mm256_packs_epi32(four[2].0, four[3].0), middle);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
            // SAFETY: `out` is 32 bytes, and the store asks for no alignment.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
        }
        samples
    }

    #[target_feature(enable = "avx2")]
    fn transposed(rows: [Eight; 8]) -> [Eight; 8] {
        let [a, b, c, d, e, f, g, h] = rows.map(|row| row.0);
        let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        let (ef, ef_high) = (_mm256_unpacklo_epi32(e, f), _mm256_unpackhi_epi32(e, f));
        let (gh, gh_high) = (_mm256_unpacklo_epi32(g, h), _mm256_unpackhi_epi32(g, h));
        let top = [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ];
        let bottom = [
            _mm256_unpacklo_epi64(ef, gh),
            _mm256_unpackhi_epi64(ef, gh),
            _mm256_unpacklo_epi64(ef_high, gh_high),
            _mm256_unpackhi_epi64(ef_high, gh_high),
        ];
        [
            Eight(_mm256_permute2x128_si256::<0x20>(top[0], bottom[0])),
            Eight(_mm256_permute2x128_si256::<0x20>(top[1], bottom[1])),
            Eight(_mm256_permute2x128_si256::<0x20>(top[2], bottom[2])),
            Eight(_mm256_permute2x128_si256::<0x20>(top[3], bottom[3])),
            Eight(_mm256_permute2x128_si256::<0x31>(top[0], bottom[0])),
            Eight(_mm256_permute2x128_si256::<0x31>(top[1], bottom[1])),
            Eight(_mm256_permute2x128_si256::<0x31>(top[2], bottom[2])),
            Eight(_mm256_permute2x128_si256::<0x31>(top[3], bottom[3])),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_gives_what_numbers_give() {
        let mut state = 1_u64;
        let mut random = move |range: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % range
        };
        for range in [3, 100, 2000, 32_767] {
            for _ in 0..500 {
                let block = std::array::from_fn(|_| (random(2 * range) as i64 - range as i64) as i16);
                let quantization = std::array::from_fn(|_| 1 + random(255) as u16);
                assert_eq!(inverse(&block, &quantization), portable(&block, &quantization));
            }
        }
    }

    #[test]
    fn a_constant_is_an_eighth_of_its_coefficient() {
        let mut block = [0; 64];
        block[0] = 8;
        assert_eq!(portable(&block, &[10; 64]), [[138; 8]; 8]);
    }
}
