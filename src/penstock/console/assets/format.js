// Numbers, sizes, spans and moments as people read them.

import { h } from './dom.js'

const NONE = '–'
const plain = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })

export const count = (value) => (value === null || value === undefined ? NONE : plain.format(value))

export function short(value) {
  if (value === null || value === undefined) return NONE
  for (const [size, unit] of [[1e9, 'G'], [1e6, 'M'], [1e4, 'k']])
    if (Math.abs(value) >= size) return trimmed(value / (unit === 'k' ? 1e3 : size)) + unit
  return value !== 0 && Math.abs(value) < 10 ? trimmed(value) : plain.format(value)
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE
  let size = Math.abs(value)
  for (const unit of ['B', 'KB', 'MB', 'GB', 'TB']) {
    if (size < 1000 || unit === 'TB') return `${unit === 'B' ? Math.round(size) : trimmed(size)} ${unit}`
    size /= 1000
  }
}

export const rate = (value, unit = '') => (value === null || value === undefined ? NONE : `${short(value)}${unit}/s`)

// What a lane makes of changes: events for a stream, changes for the shapes' clients, rows of tables.
export const laneRate = (lane) => rate(lane.rate, { stream: ' events', shapes: ' changes' }[lane.kind] ?? ' rows')

const trimmed = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, ''))

export function span(seconds) {
  if (seconds === null || seconds === undefined) return NONE
  const value = Math.max(0, seconds)
  if (value < 0.001) return '0 s'
  if (value < 1) return `${Math.round(value * 1000)} ms`
  if (value < 10) return `${value.toFixed(1)} s`
  if (value < 100) return `${Math.round(value)} s`
  if (value < 5400) return `${Math.round(value / 60)} min`
  if (value < 129600) return `${Math.round(value / 3600)} h`
  return `${Math.round(value / 86400)} d`
}

export function clock(moment, withDate = false) {
  const at = new Date(moment)
  const isToday = at.toDateString() === new Date().toDateString()
  const time = at.toLocaleTimeString('en-GB')
  return isToday && !withDate ? time : `${at.toLocaleDateString('sv')} ${time}`
}

const ago = (moment) => span((Date.now() - new Date(moment)) / 1000) + ' ago'

// Both: when it was, and how long ago that is.
export function moment(iso, { brief = false } = {}) {
  if (!iso) return NONE
  const text = brief ? ago(iso) : [clock(iso), h('small', { class: 'ago' }, ago(iso))]
  return h('time', { datetime: iso, title: `${clock(iso, true)}, ${ago(iso)}` }, text)
}

export const percent = (part) => (part === null || part === undefined ? NONE : `${Math.floor(part * 100)} %`)

export const position = (text) => h('code', { class: 'position' }, text || NONE)
