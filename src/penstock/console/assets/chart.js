// Lines over time: small ones without axes, and large ones with them.

import { h } from './dom.js'
import { clock } from './format.js'

export function spark(values) {
  const known = values.filter((value) => value !== null && value !== undefined)
  if (known.length < 2) return h('svg', { class: 'spark', viewBox: '0 0 100 24', 'aria-hidden': 'true' })
  const top = Math.max(...known, 1e-9)
  const x = (index) => (index / (values.length - 1)) * 100
  const y = (value) => 23 - (value / top) * 21
  return h('svg', { class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    h('path', { class: 'area', d: area(values, x, y) }), h('path', { class: 'line', d: line(values, x, y) }))
}

function area(values, x, y) {
  const points = values.map((value, index) => [index, value]).filter(([, value]) => value !== null && value !== undefined)
  const [first, last] = [points[0][0], points.at(-1)[0]]
  return `M${x(first)} 24${points.map(([index, value]) => `L${x(index).toFixed(2)} ${y(value).toFixed(2)}`).join('')}L${x(last)} 24Z`
}

function line(values, x, y) {
  let isDown = false
  return values.map((value, index) => {
    if (value === null || value === undefined) { isDown = false; return '' }
    const step = `${isDown ? 'L' : 'M'}${x(index).toFixed(2)} ${y(value).toFixed(2)}`
    isDown = true
    return step
  }).join('')
}

// `series`: [{name, points: [[seconds, value or null], …]}]. `shown`: how a value is written.
export function chart({ series, from, to, shown, label, height = 170, marked, onmark }) {
  const width = 640
  const left = 58
  const bottom = 22
  const values = series.flatMap((each) => each.points.map(([, value]) => value)).filter((value) => value !== null)
  const top = niceTop(Math.max(...values, 0))
  const x = (at) => left + ((at - from) / (to - from)) * (width - left - 8)
  const y = (value) => 8 + (1 - value / top) * (height - bottom - 8)
  const ticks = [0, top / 2, top]
  const moments = Array.from({ length: 5 }, (_, index) => from + ((to - from) * (index + 0.5)) / 5)
  const at = marked
  return h('figure', { class: 'chart', role: 'img', 'aria-label': `${label}: ${series.map((each) => `${each.name} ${shown(lastOf(each.points))}`).join(', ')}` },
    h('svg', {
      viewBox: `0 0 ${width} ${height}`,
      onpointermove: (event) => {
        const box = event.currentTarget.getBoundingClientRect()
        const place = ((event.clientX - box.left) / box.width) * width
        onmark?.(Math.min(to, Math.max(from, from + ((place - left) / (width - left - 8)) * (to - from))))
      },
      onpointerleave: () => onmark?.(null),
    },
      ticks.map((value) => [
        h('line', { class: 'grid', x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
        h('text', { class: 'tick', x: left - 8, y: y(value) + 4, 'text-anchor': 'end' }, shown(value)),
      ]),
      moments.map((each) => h('text', { class: 'tick', x: x(each), y: height - 4, 'text-anchor': 'middle' }, clock(each * 1000).slice(-8, -3))),
      series.map((each, index) => h('path', { class: `line c${index % 8}`, d: path(each.points, x, y) })),
      at && h('line', { class: 'mark', x1: x(at), x2: x(at), y1: 8, y2: height - bottom })),
    h('figcaption', null, series.map((each, index) =>
      h('span', { key: each.name }, h('i', { class: `swatch c${index % 8}`, 'aria-hidden': 'true' }), each.name, h('b', null, shown(at ? nearest(each.points, at) : lastOf(each.points))))),
      at && h('span', { class: 'when' }, clock(at * 1000))))
}

const lastOf = (points) => points.findLast(([, value]) => value !== null)?.[1] ?? null

function nearest(points, at) {
  let best = null
  for (const [moment, value] of points) if (value !== null && (best === null || Math.abs(moment - at) < Math.abs(best[0] - at))) best = [moment, value]
  return best && Math.abs(best[0] - at) < 120 ? best[1] : null
}

function path(points, x, y) {
  let isDown = false
  let d = ''
  for (const [at, value] of points) {
    if (value === null) { isDown = false; continue }
    d += `${isDown ? 'L' : 'M'}${x(at).toFixed(1)} ${y(value).toFixed(1)}`
    isDown = true
  }
  return d
}

function niceTop(value) {
  if (value <= 0) return 1
  const power = 10 ** Math.floor(Math.log10(value))
  for (const step of [1, 2, 2.5, 5, 10]) if (step * power >= value) return step * power
}
