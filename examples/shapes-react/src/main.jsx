import { useShape } from '@electric-sql/react'
import { useEffect, useRef, useState } from 'react'
import { createRoot } from 'react-dom/client'
import './style.css'

const SHOWN_AS_NEW_MS = 2000

function App() {
  const { data, isLoading, error } = useShape({ url: new URL('/items', window.location.href).href })
  if (error) return <p role="alert">Penstock does not answer: {String(error)}</p>
  if (isLoading) return <p>Loading …</p>
  const rows = [...data].sort((one, other) => one.id - other.id)
  const done = rows.filter((row) => row.done).length
  return (
    <>
      <h1>Items</h1>
      <p data-testid="count">
        {rows.length} in the table, {done} done. Write to it, and watch.
      </p>
      <table>
        <thead>
          <tr>
            <th>id</th>
            <th>title</th>
            <th>price</th>
            <th>done</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Item key={row.id} row={row} />
          ))}
        </tbody>
      </table>
    </>
  )
}

function Item({ row }) {
  const isNew = useIsNew(row)
  return (
    <tr data-id={row.id} className={isNew ? 'new' : undefined}>
      <td>{row.id}</td>
      <td>{row.title}</td>
      <td>{row.price}</td>
      <td>{row.done ? '✓' : ''}</td>
    </tr>
  )
}

// Whether a row has changed within the last seconds.
function useIsNew(row) {
  const written = JSON.stringify(row)
  const before = useRef(written)
  const [isNew, setIsNew] = useState(false)
  useEffect(() => {
    if (before.current === written) return
    before.current = written
    setIsNew(true)
    const timer = setTimeout(() => setIsNew(false), SHOWN_AS_NEW_MS)
    return () => clearTimeout(timer)
  }, [written])
  return isNew
}

createRoot(document.getElementById('app')).render(<App />)
